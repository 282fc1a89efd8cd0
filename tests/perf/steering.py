"""Grids of steered texts: mixed batches against none, against one setting at a time, and what leaving rows save."""

from __future__ import annotations

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

ROWS, NEW, PROMPT = 96, 16, 16
"""Rows of the grid, new tokens, and tokens of each prompt."""
BATCH = 10
"""Prompts of the grid, and rows of a batch when one setting is steered at a time, as in AxBench."""
TIMED = 3
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


def measure_grid(bench: Bench) -> list[dict[str, Any]]:
    """A mixed grid against unsteered texts, against one setting at a time, and through a routed dictionary."""
    topk = load_dictionary(TOPK, device=bench.device, lm=bench.lm)
    routed = load_dictionary(ROUTESAE, mode="corrected", device=bench.device, lm=bench.lm)
    (site,) = topk.writes
    ids = bench.ids(0, BATCH, PROMPT)
    prompts = [ids.tolist()[row % BATCH] for row in range(ROWS)]
    doing = settings(topk, site, bench.lm.d_model)

    def grid(bound: Sequence[BoundIntervention]) -> list[Edit]:
        return intervention_edits([[bound[row // BATCH]] for row in range(ROWS)], device=bench.lm.device)

    alone = [
        writing(bench, ids.tolist(), intervention_edits([[one]] * BATCH, device=bench.lm.device))
        for one in doing[:TIMED]
    ]
    vectors = [
        one.intervention.values[0]
        * (topk.write_vectors(one.intervention.latents)[site][0] if one.vector is None else one.vector)
        for one in doing[:TIMED]
    ]
    vectors = [vector.to(device=bench.lm.device, dtype=bench.lm.dtype) for vector in vectors]
    mixed = writing(bench, prompts, grid(doing))
    through = writing(bench, prompts, grid(settings(routed, site, bench.lm.d_model)))
    seconds = alternate(
        bench,
        {
            "unsteered": writing(bench, prompts, []),
            "grid": mixed,
            "bare": lambda: bare_loop(bench, ids, site, vectors),
            "tens": lambda: [write() for write in alone],
            "routed": through,
        },
    )
    texts, tens = mixed().tokens, [tokens for write in alone for tokens in write().tokens]
    same = sum(one == other for one, other in zip(texts, tens, strict=False))
    what = f"{ROWS} rows, {len(doing)} settings (every third a dense vector) of {BATCH} prompts at {site}, {NEW} new"
    few = f"{TIMED} settings one at a time in batches of {BATCH}, scaled to as many rows"
    scale = ROWS / (TIMED * BATCH)
    lines = [
        ("steering_grid", "unsteered", "grid", f"{what} / the same rows unsteered"),
        ("steering_grid_axbench", "bare", "grid", f"{what} / generate of transformers under a hook, {few}"),
        ("steering_grid_by_ten", "tens", "grid", f"{what} / latentbench's own generate, {few}"),
        ("steering_grid_routed", "unsteered", "routed", f"{what}, RouteSAE with its shadow pass / unsteered"),
    ]
    found = []
    for name, base, ours, note in lines:
        rows = ROWS if base == "unsteered" else TIMED * BATCH
        detail = {"same_texts": [same, len(tens)]} if base == "tens" else {}
        found.append(
            compared(
                bench,
                name,
                seconds[base],
                seconds[ours],
                1.0 if base == "unsteered" else scale,
                tokens_per_second=rate(ROWS * NEW, seconds[ours]),
                bare_tokens_per_second=rate(rows * NEW, seconds[base]),
                note=note,
                **detail,
            )
        )
    return [*found, leaving(bench, prompts, grid(doing))]


def leaving(bench: Bench, prompts: Sequence[Sequence[int]], edits: Sequence[Edit]) -> dict[str, Any]:
    """The same grid with half of its rows ending early: rows that have ended leave, or stay to the end."""
    model: Any = bench.lm.model
    (stop,) = bench.lm.tokenize(["."], 1, bos="never")[0]
    towards = 100.0 * model.get_output_embeddings().weight[stop].detach()
    chosen = torch.arange(len(prompts), device=bench.lm.device) % 2 == 0
    end = EndHalf(Site("resid_post", bench.lm.n_layers - 1), towards, chosen)
    leave = writing(bench, prompts, [*edits, end], [stop])

    def stay() -> Generation:
        with nobody_leaves():
            return leave()

    out, other = leave(), stay()
    same = sum(one == two for one, two in zip(out.tokens, other.tokens, strict=True))
    early = sum(len(tokens) <= EARLY for tokens in out.tokens)
    assert early >= len(prompts) // 2, "the rows that were to end went on"
    seconds = alternate(bench, {"stay": stay, "leave": leave}, warm=False)
    tokens = sum(len(tokens) for tokens in out.tokens)
    return compared(
        bench,
        "leaving_rows",
        seconds["stay"],
        seconds["leave"],
        tokens_per_second=rate(tokens, seconds["leave"]),
        bare_tokens_per_second=rate(tokens, seconds["stay"]),
        ended_early=[early, len(prompts)],
        same_texts=[same, len(prompts)],
        note=f"{len(prompts)} steered rows, {early} of them with at most {EARLY} of {NEW} new tokens / the same rows when "
        "those that have ended stay in the batch",
    )
