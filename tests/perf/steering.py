"""Grids of steered texts: mixed batches against none, against one setting at a time, and what leaving rows save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from passes import ROUTESAE, TOPK
from timing import Bench, alternate, compared, rate
from torch import Tensor

from latentbench.adapters import Dictionary, load_dictionary
from latentbench.interventions import (
    BoundIntervention,
    Intervention,
    bind,
    dictionary_sha256,
    intervention_edits,
    vector_payload,
)
from latentbench.lm import Edit, EditView, Generation, Site, _generate

SITE_LAYER = 21
"""Of the zoo's TopK dictionary, and of the dense vectors."""
ROWS, NEW, PROMPT = 96, 16, 16
"""Rows of the grid, new tokens, and tokens of each prompt."""
BATCH = 10
"""Prompts of the grid, and rows of a batch when one setting is steered at a time, as in AxBench."""
TIMED = 2
"""Settings whose texts are written one setting at a time; their time is scaled to the grid's rows."""
EARLY = 4
"""New tokens after which half of the rows end, where rows end."""


@dataclass(eq=False)
class EndHalf(Edit):
    """Turns every second row's next token into the stop token once it has its early tokens."""

    site: Site
    towards: Tensor
    """`Float[Tensor, "d"]`: what makes the stop token the likeliest by far."""
    chosen: Tensor
    """`Bool[Tensor, "row"]`: the rows that end."""

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        """See `Edit.apply`."""
        due = view.generated & (view.positions == PROMPT + EARLY - 1)
        due = due & view.take(self.chosen)[:, None]
        return torch.where(due[..., None], self.towards, hidden)


def settings(dictionary: Dictionary, site: Site, width: int) -> list[BoundIntervention]:
    """Ten things to do: latents at several factors, and every third a dense vector."""
    found = []
    generator = torch.Generator().manual_seed(0)
    for index in range(-(-ROWS // BATCH)):
        factor = (2.0, 4.0, 8.0)[index % 3]
        if index % 3 == 2:
            vector = torch.randn(width, generator=generator)
            record = Intervention(operator="add", amounts=(factor,), vector=vector_payload(site, vector))
            found.append(bind(record, vector=vector))
            continue
        record = Intervention(
            operator="add",
            amounts=(factor,),
            latents=(8 * index,),
            dictionary=dictionary_sha256(dictionary),
        )
        found.append(bind(record, dictionary))
    return found


def added(one: BoundIntervention, site: Site) -> Tensor:
    """`Float[Tensor, "d"]`: amount times direction of a setting, in the dictionary's units."""
    if one.vector is not None:
        return one.intervention.values[0] * one.vector
    assert one.dictionary is not None
    return one.intervention.values[0] * one.dictionary.write_vectors(one.intervention.latents)[site][0]


def writing(
    bench: Bench, prompts: Sequence[Sequence[int]], edits: Sequence[Edit], stop_ids: Sequence[int] = ()
) -> Callable[[], Generation]:
    """A call that writes one batch."""
    return lambda: bench.lm.generate(prompts, max_new_tokens=NEW, edits=edits, stop_ids=stop_ids)


def bare_loop(bench: Bench, prompts: Tensor, site: Site, vectors: Sequence[Tensor]) -> None:
    """What plain transformers takes for one setting after the other: `generate` under a hook that adds a vector."""
    model: Any = bench.lm.model
    block = model.get_submodule(bench.lm.layout.blocks)[site.layer]
    for vector in vectors:

        def add(_module: object, _args: object, output: Any, vector: Tensor = vector) -> Any:
            return (output[0] + vector, *output[1:]) if isinstance(output, tuple) else output + vector

        handle = block.register_forward_hook(add)
        try:
            with torch.no_grad():
                ids = model.generate(
                    input_ids=prompts,
                    attention_mask=torch.ones_like(prompts),
                    max_new_tokens=NEW,
                    min_new_tokens=NEW,
                    do_sample=False,
                    pad_token_id=bench.lm.pad_id,
                )
        finally:
            handle.remove()
        assert ids.shape == (len(prompts), PROMPT + NEW)


@contextmanager
def nobody_leaves() -> Iterator[None]:
    """Rows that have ended stay in their batch."""
    share = _generate._ENDED
    _generate._ENDED = 2.0
    try:
        yield
    finally:
        _generate._ENDED = share


class Grid:
    """Ten prompts by ten settings, cut to `ROWS`, for one dictionary."""

    def __init__(self, bench: Bench, dictionary: Dictionary) -> None:
        """Make the edits; dense vectors are written where TopK is."""
        self.ids = bench.ids(0, BATCH, PROMPT)
        self.prompts = [self.ids.tolist()[row % BATCH] for row in range(ROWS)]
        self.site = Site("resid_post", SITE_LAYER)
        self.settings = settings(dictionary, self.site, bench.lm.d_model)
        rows = [[self.settings[row // BATCH]] for row in range(ROWS)]
        self.edits = intervention_edits(rows, device=bench.lm.device)
        self.what = (
            f"{ROWS} rows, {len(self.settings)} settings (every third a dense vector) of {BATCH} prompts of {PROMPT} "
            f"tokens, {NEW} new tokens"
        )


def measure_grid(bench: Bench) -> list[dict[str, Any]]:
    """A mixed grid against unsteered texts and one setting at a time, through a router, and with rows that leave."""
    plain = Grid(bench, load_dictionary(TOPK, device=bench.device, lm=bench.lm))
    routed = Grid(bench, load_dictionary(ROUTESAE, mode="corrected", device=bench.device, lm=bench.lm))
    few = bench._replace(repeats=min(3, bench.repeats))
    writing(bench, plain.ids.tolist(), [])()  # caches and threads warm; the batches below are long
    return [*measure_batches(bench, plain), measure_routed(few, routed), measure_leaving(few, plain)]


def measure_batches(bench: Bench, grid: Grid) -> list[dict[str, Any]]:
    """The grid against the same rows unsteered, and against two ways to steer one setting at a time."""
    said: dict[str, list[list[int]]] = {}
    ids = grid.ids.tolist()
    alone = [
        writing(bench, ids, intervention_edits([[one]] * BATCH, device=bench.lm.device))
        for one in grid.settings[:TIMED]
    ]
    vectors = [added(one, grid.site).to(grid.ids.device, bench.lm.dtype) for one in grid.settings[:TIMED]]
    mixed = writing(bench, grid.prompts, grid.edits)
    seconds = alternate(
        bench,
        {
            "unsteered": writing(bench, grid.prompts, []),
            "grid": lambda: said.update(grid=mixed().tokens),
            "bare": lambda: bare_loop(bench, grid.ids, grid.site, vectors),
            "tens": lambda: said.update(tens=[tokens for write in alone for tokens in write().tokens]),
        },
        warm=False,
    )
    same = sum(one == other for one, other in zip(said["grid"], said["tens"], strict=False))
    slow = f"{TIMED} settings one at a time in batches of {BATCH}, scaled to as many rows"
    lines = (
        ("steering_grid", "unsteered", ROWS, "the same rows unsteered"),
        ("steering_grid_axbench", "bare", TIMED * BATCH, f"transformers' generate under a hook, {slow}"),
        ("steering_grid_by_ten", "tens", TIMED * BATCH, f"latentbench's own generate, {slow}"),
    )
    return [
        compared(
            bench,
            name,
            seconds[base],
            seconds["grid"],
            ROWS / rows,
            tokens_per_second=rate(ROWS * NEW, seconds["grid"]),
            bare_tokens_per_second=rate(rows * NEW, seconds[base]),
            **({"same_texts": [same, rows]} if base == "tens" else {}),
            note=f"{grid.what}, / {what}",
        )
        for name, base, rows, what in lines
    ]


def measure_routed(bench: Bench, grid: Grid) -> dict[str, Any]:
    """The grid of a routed dictionary, which needs a shadow pass, against the same rows unsteered."""
    seconds = alternate(
        bench,
        {
            "unsteered": writing(bench, grid.prompts, []),
            "routed": writing(bench, grid.prompts, grid.edits),
        },
        warm=False,
    )
    return compared(
        bench,
        "steering_grid_routed",
        seconds["unsteered"],
        seconds["routed"],
        tokens_per_second=rate(ROWS * NEW, seconds["routed"]),
        bare_tokens_per_second=rate(ROWS * NEW, seconds["unsteered"]),
        note=f"RouteSAE corrected, shadow pass included: {grid.what}, / the same rows unsteered",
    )


def measure_leaving(bench: Bench, grid: Grid) -> dict[str, Any]:
    """The grid with half of its rows ending early: rows that have ended leave, or stay to the end."""
    model: Any = bench.lm.model
    (stop,) = bench.lm.tokenize(["Lewis"], 8, bos="never")[
        0
    ]  # one token, which the texts never come to themselves
    words = model.get_output_embeddings().weight.detach()
    towards = 100.0 * (words[stop] - words.mean(dim=0))
    chosen = torch.arange(ROWS, device=bench.lm.device) % 2 == 0
    end = EndHalf(Site("resid_post", bench.lm.n_layers - 1), towards, chosen)
    write = writing(bench, grid.prompts, [*grid.edits, end], [stop])
    said: dict[str, list[list[int]]] = {}

    def stay() -> None:
        with nobody_leaves():
            said.update(stay=write().tokens)

    seconds = alternate(bench, {"stay": stay, "leave": lambda: said.update(leave=write().tokens)}, warm=False)
    lengths = [len(tokens) for tokens in said["leave"]]
    counts = dict(sorted(Counter(lengths).items()))
    assert counts == {EARLY: ROWS // 2, NEW: ROWS // 2}, (
        f"half of the rows should have ended, and found {counts}"
    )
    return compared(
        bench,
        "leaving_rows",
        seconds["stay"],
        seconds["leave"],
        tokens_per_second=rate(sum(lengths), seconds["leave"]),
        bare_tokens_per_second=rate(sum(lengths), seconds["stay"]),
        lengths=counts,
        same_texts=[sum(map(list.__eq__, said["stay"], said["leave"])), ROWS],
        note=f"{grid.what} at most, half of the rows end after {EARLY} / all rows stay in the batch to the end",
    )
