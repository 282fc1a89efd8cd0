"""Settling which sites a foreign checkpoint belongs to: what its config says against what was asked for."""

from __future__ import annotations

from typing import NamedTuple

from latentbench.errors import AdapterError, UserError
from latentbench.lm import Site

__all__ = ["Place", "block_input", "mlp_of", "parse_site", "settle", "settle_several"]

ARROW = "->"


class Place(NamedTuple):
    """Where a dictionary reads and where it writes."""

    reads: Site
    """The site that is encoded."""
    writes: Site
    """The site that is reconstructed; the same one but for transcoders."""

    def __str__(self) -> str:
        """As it is written in `LoadOptions.site`."""
        return str(self.reads) if self.reads == self.writes else f"{self.reads}{ARROW}{self.writes}"


def parse_site(name: str) -> Site | None:
    """The site that a name stands for, or None if it stands for none."""
    try:
        return Site.parse(name)
    except UserError:
        return None


def block_input(layer: int) -> Site:
    """What block `layer` takes: the residual stream after the block before it."""
    return Site("resid_post", layer - 1) if layer else Site("embed")


def mlp_of(layer: int) -> Place:
    """The input and the output of a block's MLP."""
    return Place(Site("mlp_in", layer), Site("mlp_out", layer))


def settle(found: Place | None, asked: str | None, *, transcoder: bool, file: str, said: str = "") -> Place:
    """The place of a dictionary.

    Args:
        found: what the checkpoint says; None where it says nothing that is a site here.
        asked: `LoadOptions.site`: a site, or `READ->WRITTEN` for a transcoder. `mlp_in.N` or `mlp_out.N` alone is
            enough for the transcoder of an MLP.
        transcoder: whether what is read and what is written differ.
        file: the file that says where it belongs, for messages.
        said: what it says, in its own words.

    Raises:
        AdapterError: nothing is known of the site, or what was asked contradicts the checkpoint.
    """
    wanted = None if asked is None else _asked(asked, transcoder=transcoder, file=file)
    if found is None and wanted is None:
        example = "mlp_in.3->mlp_out.3" if transcoder else "resid_post.3"
        raise AdapterError(
            f"{file}: key site is not told ({said or 'nothing is said of it'}), and a site of the language model "
            f"is expected: give it, such as site={example}"
        )
    if found is None:
        assert wanted is not None
        return wanted
    if wanted is not None and wanted != found:
        raise AdapterError(
            f"{file}: key site is {found}"
            + (f" ({said})" if said else "")
            + f", and {wanted} was asked for: leave "
            "the site out, or take another checkpoint"
        )
    return found


def settle_several(asked: str | None, number: int, *, file: str) -> tuple[Site, ...]:
    """The sites of a crosscoder from `LoadOptions.site`, separated by commas, in the order of its weights.

    Raises:
        AdapterError: none were given, another number of them, or one of them twice.
    """
    sites = [Site.parse(name) for name in asked.split(",")] if asked else []
    if len(sites) != number or len(set(sites)) != number:
        given = ", ".join(map(str, sites)) or "none"
        raise AdapterError(
            f"{file}: key encoder.weight has {number} sites that the checkpoint does not name; {number} different "
            f"ones are expected, and {given} given: name them in the order of the weights, such as "
            "site=resid_post.3,resid_post.7 (a crosscoder of two models at one site can't be measured on one model)"
        )
    return tuple(sites)


def _asked(asked: str, *, transcoder: bool, file: str) -> Place:
    read, arrow, written = asked.partition(ARROW)
    if arrow:
        place = Place(Site.parse(read), Site.parse(written))
        if place.reads != place.writes and not transcoder:
            raise AdapterError(
                f"{file}: key site was asked for as {place}, and one site is expected: it is no transcoder"
            )
        return place
    site = Site.parse(asked)
    if not transcoder:
        return Place(site, site)
    if site.kind in ("mlp_in", "mlp_out") and site.layer is not None:
        return mlp_of(site.layer)
    raise AdapterError(
        f"{file}: key site was asked for as {site}, and a transcoder reads one and writes another: write both, as "
        f"in site=mlp_in.3{ARROW}mlp_out.3"
    )
