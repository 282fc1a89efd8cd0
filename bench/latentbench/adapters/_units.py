"""The raw size of one unit of a latent at the tokens of a running pass."""

from __future__ import annotations

from torch import Tensor

from latentbench.adapters._dictionary import Dictionary
from latentbench.adapters._edit_latents import clean_route, observed_sites
from latentbench.adapters._routesae import RouteSae
from latentbench.lm import EditView, Site

__all__ = ["unit_scale", "unit_sites"]


def unit_sites(dictionary: Dictionary, site: Site) -> tuple[Site, ...]:
    """Sites of the unedited model that `unit_scale` needs at a written site.

    A router needs all that it pools. A dictionary of several sites takes its codes, statistics and all, from the
    unedited model; the others take them from what arrives.
    """
    if isinstance(dictionary, RouteSae):
        return dictionary.pools
    clean = observed_sites(dictionary)
    return (site,) if site in clean and dictionary.card.normalisation != "none" else ()


def unit_scale(dictionary: Dictionary, site: Site, hidden: Tensor, view: EditView) -> Tensor:
    """What `Dictionary.write_vectors` with a context is larger by than without, at every token of a pass.

    Args:
        dictionary: any that writes the site.
        site: one of its `writes`.
        hidden: `Float[Tensor, "row pos d"]`, the activation there.
        view: of the pass; it observes `unit_sites`.

    Returns:
        `Float[Tensor, "row pos 1"]` in the dictionary's type, on the activation's device.
    """
    clean = not isinstance(dictionary, RouteSae) and site in unit_sites(dictionary, site)
    acts = view.observed[site] if clean else hidden
    scale = dictionary.raw_scale(site, acts.to(device=dictionary.device, dtype=dictionary.dtype))
    scale = scale.to(hidden.device)
    if isinstance(dictionary, RouteSae) and dictionary.splice == "corrected":
        return scale / clean_route(view, dictionary)[1][..., None].to(scale)
    return scale
