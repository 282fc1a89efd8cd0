"""Rows of a generated batch: they leave when they have ended, share what they have in common, and never mix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from latentbench.adapters import Dictionary, LatentChange, latent_edits, steering_edits
from latentbench.errors import UserError
from latentbench.interventions import (
    BoundIntervention,
    Intervention,
    Operator,
    bind,
    dictionary_sha256,
    intervention_edits,
    vector_payload,
)
from latentbench.lm import (
    BOTH_PHASES,
    LM,
    AddVector,
    Edit,
    EditView,
    Generation,
    MapActivation,
    Phase,
    Site,
    _generate,
    generation_batches,
)
from latentbench.testing import random_routesae, random_sae

Draw = Callable[..., Tensor]
SITE = Site("resid_post", 1)
NEW = 9
ROWS = 12
PHASES: tuple[frozenset[Phase], ...] = (frozenset({"prefill"}), frozenset({"decode"}), BOTH_PHASES)
KINDS = (
    "none",
    "vectors",
    "tokens",
    "mapped",
    "steered",
    "routed",
    "codes",
    "routed codes",
    "interventions",
    "routed interventions",
    "sublayer",
)


@dataclass(eq=False)
class Widths(Edit):
    """Changes nothing and keeps how many rows pass."""

    site: Site
    rows: list[int] = field(default_factory=list)

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        self.rows.append(len(hidden))
        assert view.rows is None or len(view.rows) == len(hidden)
        return hidden


@pytest.fixture
def prompts(rows: list[list[int]]) -> list[list[int]]:
    """Twelve rows with three prompts."""
    return [rows[row % 3] for row in range(ROWS)]


def edits_of(kind: str, lm: LM, draw: Draw, which: list[int]) -> list[Edit]:  # noqa: PLR0911
    """Edits of some rows out of twelve that differ from row to row; left padding to the widest prompt is theirs."""
    vectors = (draw(ROWS, lm.d_model) * 3)[which]
    if kind in ("none", "vectors"):
        return [AddVector(SITE, vectors)] if kind == "vectors" else []
    if kind == "tokens":  # on the last prompt tokens, and as a mask
        last = torch.zeros(len(which), 14, 1)
        last[:, -3:] = 1
        where = (draw(ROWS, 14, seed=4) > 0)[which]
        where[:, :9] = False
        return [AddVector(SITE, vectors[:, None] * last), AddVector(SITE, vectors, where=where)]
    if kind == "mapped":
        moved = vectors.to(lm.dtype)

        def add(acts: Tensor, index: Tensor) -> Tensor:
            columns = 14 if len(index) > len(which) else 1
            return acts + moved[index // columns]

        return [MapActivation(SITE, add)]
    if kind == "sublayer":
        return [AddVector(Site("mlp_out", 2), vectors), AddVector(Site("attn_out", 3), vectors)]
    dictionary: Dictionary = (
        random_routesae(
            [Site("resid_post", layer) for layer in range(1, lm.n_layers - 1)],
            d_model=lm.d_model,
            dtype=lm.dtype,
        )
        if kind.startswith("routed")
        else random_sae(site=SITE, d_model=lm.d_model, dtype=lm.dtype)
    )
    if kind in ("steered", "routed"):
        return list(steering_edits(dictionary, vectors))
    if kind.endswith("interventions"):
        return list(
            intervention_edits([[_bound(row, dictionary, vectors[n])] for n, row in enumerate(which)])
        )
    changes = [
        LatentChange(torch.tensor([row]), torch.tensor([2 * row + 1]), torch.tensor([9.0])) for row in which
    ]
    return list(latent_edits(dictionary, changes, keep_error=True))


def _bound(row: int, dictionary: Dictionary, vector: Tensor) -> BoundIntervention:
    """A dense vector, or a latent that is raised, set, clamped from below or projected out, by turns."""
    operators: tuple[Operator, ...] = ("set", "add", "add", "min_clamp", "project_out")
    operator = operators[row % 5]
    if row % 5 == 2:
        dense = vector.float()
        record = Intervention(operator=operator, amounts=(1.0,), vector=vector_payload(SITE, dense))
        return bind(record, vector=dense)
    record = Intervention(
        operator=operator,
        amounts=() if operator == "project_out" else (5.0 + row,),
        latents=(row,),
        dictionary=dictionary_sha256(dictionary),
    )
    return bind(record, dictionary)


def generated(
    lm: LM,
    prompts: list[list[int]],
    edits: list[Edit],
    which: list[int] | None = None,
    *,
    stops: list[int] | None = None,
    temperature: float = 0.0,
    use_cache: bool = True,
) -> Generation:
    some = list(range(len(prompts))) if which is None else which
    return lm.generate(
        [prompts[row] for row in some],
        max_new_tokens=NEW,
        edits=edits,
        temperature=temperature,
        seeds=[70 + row for row in some],
        stop_ids=stops or (),
        use_cache=use_cache,
    )


@pytest.fixture(params=[True, False], ids=["shared", "unshared"])
def sharing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether equal prompts are run once."""
    if not request.param:
        monkeypatch.setattr(_generate, "common_stem", lambda *_: None)
    return bool(request.param)


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_a_mixed_batch_are_what_they_are_alone(
    lm: LM, prompts: list[list[int]], draw: Draw, kind: str, temperature: float
) -> None:
    whole = generated(lm, prompts, edits_of(kind, lm, draw, list(range(ROWS))), temperature=temperature)
    if kind != "none":
        assert whole.tokens != generated(lm, prompts, [], temperature=temperature).tokens
    for row in (2, 5, 11):  # those with the longest prompt, which stand where they stand in the batch
        alone = generated(lm, prompts, edits_of(kind, lm, draw, [row]), [row], temperature=temperature)
        assert alone.tokens[0] == whole.tokens[row], row


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_have_ended_leave_and_the_others_go_on_as_before(
    lm: LM, prompts: list[list[int]], draw: Draw, kind: str, sharing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edits() -> list[Edit]:
        return edits_of(kind, lm, draw, list(range(ROWS)))

    free = generated(lm, prompts, edits()).tokens
    stops = [free[0][0]] if kind == "none" else [free[0][1], free[4][2], free[8][4]]
    wanted = [next((row[:n] for n, token in enumerate(row) if token in stops), row) for row in free]
    leaving, staying = Widths(SITE), Widths(SITE)
    left = generated(lm, prompts, [*edits(), leaving], stops=stops)
    assert left.tokens == wanted
    assert left.stopped == [len(row) < NEW for row in wanted]
    assert leaving.rows == widths_of([len(row) for row in wanted])
    assert min(leaving.rows) < ROWS, "these stop tokens must end some rows well before others"
    if kind != "mapped":  # its function tells rows by the number of columns, which grows without a cache
        plain = generated(lm, prompts, edits(), stops=stops, use_cache=False)
        assert (plain.tokens, plain.stopped, plain.broken) == (left.tokens, left.stopped, left.broken)
        assert left.forward_tokens < plain.forward_tokens
    monkeypatch.setattr(_generate, "_ENDED", 2.0)
    kept = generated(lm, prompts, [*edits(), staying], stops=stops)
    assert kept == left, "what is counted are rows that go on, whether or not the others are still there"
    assert set(staying.rows) == {ROWS}
    assert sum(leaving.rows) < sum(staying.rows)


def widths_of(lengths: list[int]) -> list[int]:
    """Rows in every pass when they leave as soon as a quarter of those that are there have ended."""
    here, widths = list(lengths), []
    for step in range(NEW):
        widths.append(len(here))
        going = [length for length in here if length > step]
        if not going:
            break
        here = going if len(here) - len(going) >= len(here) / 4 else here
    return widths


def test_few_rows_that_have_ended_stay(llama: LM, prompts: list[list[int]], draw: Draw) -> None:
    """Copying the caches of the others would cost more than it saves."""
    free = generated(llama, prompts, edits_of("vectors", llama, draw, list(range(ROWS)))).tokens
    counts = {token: sum(token in row[:-2] for row in free) for token in range(llama.vocab_size)}
    stop = next(token for token, count in counts.items() if 1 <= count <= 2)
    widths = Widths(SITE)
    generated(llama, prompts, [*edits_of("vectors", llama, draw, list(range(ROWS))), widths], stops=[stop])
    assert set(widths.rows) == {ROWS}


def test_a_row_with_nan_leaves_at_once(llama: LM, prompts: list[list[int]], draw: Draw) -> None:
    vectors = draw(ROWS, llama.d_model) * 3
    free = generated(llama, prompts, [AddVector(SITE, vectors)])
    bad = vectors.clone()
    bad[7] = torch.nan
    widths = Widths(SITE)
    found = generated(llama, prompts, [AddVector(SITE, bad), widths])
    assert found.broken == [
        "logits were not finite at new token 1" if row == 7 else None for row in range(ROWS)
    ]
    assert found.tokens == [[] if row == 7 else tokens for row, tokens in enumerate(free.tokens)]
    assert widths.rows == [ROWS] + [ROWS - 1] * (NEW - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_prompts_are_run_once_below_the_first_edit(
    lm: LM, prompts: list[list[int]], draw: Draw, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    below: list[int] = []
    block = lm.model.get_submodule(lm.layout.blocks)[0]
    handle = block.register_forward_hook(
        lambda _module, _args, output: below.append(len(output[0] if isinstance(output, tuple) else output))
    )
    try:
        shared = generated(lm, prompts, edits_of(kind, lm, draw, list(range(ROWS))))
        assert below[0] == 3
        assert set(below[1:]) == {ROWS}
        below.clear()
        monkeypatch.setattr(_generate, "common_stem", lambda *_: None)
        assert generated(lm, prompts, edits_of(kind, lm, draw, list(range(ROWS)))) == shared
        assert set(below) == {ROWS}
    finally:
        handle.remove()


def test_nothing_is_shared_where_an_edit_begins_at_the_bottom(
    llama: LM, prompts: list[list[int]], draw: Draw
) -> None:
    vectors = draw(ROWS, llama.d_model)
    for site in (Site("embed"), Site("mlp_out", 0)):
        widths = Widths(site)
        found = generated(llama, prompts, [AddVector(site, vectors), widths])
        assert set(widths.rows) == {ROWS}
        assert found.tokens[4] == generated(llama, prompts, [AddVector(site, vectors[4])], [4]).tokens[0]


def test_an_edit_for_other_rows_is_an_error(llama: LM, prompts: list[list[int]], draw: Draw) -> None:
    with pytest.raises(UserError, match="speaks of 5 rows, but the batch has 12"):
        generated(llama, prompts, [AddVector(SITE, draw(5, llama.d_model))])
    with pytest.raises(UserError, match="speaks of 5 rows, but the batch has 12"):
        generated(llama, prompts, [AddVector(SITE, draw(16), where=torch.ones(5, 14, dtype=torch.bool))])


@pytest.mark.parametrize("kind", ["vectors", "steered", "routed"])
@pytest.mark.parametrize("phases", PHASES, ids=["prefill", "decode", "both"])
def test_a_finished_text_read_under_its_edits_has_the_logits_of_its_generation(
    lm: LM, rows: list[list[int]], draw: Draw, kind: str, phases: frozenset[Phase]
) -> None:
    vectors = draw(len(rows), lm.d_model) * 3
    if kind == "vectors":
        edits: list[Edit] = [AddVector(SITE, vectors, phases=phases)]
    else:
        sites = [Site("resid_post", layer) for layer in range(lm.n_layers - 1)]
        edits = list(
            steering_edits(
                random_routesae(sites, d_model=lm.d_model, dtype=lm.dtype)
                if kind == "routed"
                else random_sae(site=SITE, d_model=lm.d_model, dtype=lm.dtype),
                vectors,
                phases,
            )
        )
    last = Site("resid_post", lm.n_layers - 1)
    seen: list[Tensor] = []

    class Last(Widths):
        def apply(self, hidden: Tensor, view: EditView) -> Tensor:
            seen.append(hidden[:, -1])
            return hidden

    found = lm.generate(rows, max_new_tokens=NEW, edits=[*edits, Last(last)], stop_ids=())
    whole = [row + new for row, new in zip(rows, found.tokens, strict=True)]
    read = lm.forward(lm.batch(whole), capture=[last], edits=edits, prompt_lengths=[len(row) for row in rows])
    assert read.logits is not None
    for index, row in enumerate(rows):
        span = slice(len(row) - 1, len(row) + NEW - 1)
        assert read.logits[index, span].argmax(dim=-1).tolist() == found.tokens[index]
        during = torch.stack([hidden[index] for hidden in seen])
        torch.testing.assert_close(read.acts[last][index, span], during, rtol=1e-4, atol=1e-4)
    plain = lm.forward(lm.batch(whole), capture=[last], edits=edits).acts[last]
    assert torch.equal(plain, read.acts[last]) == (phases == BOTH_PHASES)


def test_prompt_lengths_are_one_for_each_row(llama: LM, rows: list[list[int]]) -> None:
    with pytest.raises(UserError, match="2 prompt_lengths for 3 rows"):
        llama.forward(llama.batch(rows), prompt_lengths=[3, 4])


def test_batches_are_even_and_of_like_lengths() -> None:
    prompts = [[7] * length for length in (3, 9, 3, 5, 9, 5, 3)]
    prompts[2] = [8, 8, 8]
    assert generation_batches(prompts, 3) == [[1, 4], [3, 5], [0, 6, 2]]
    assert generation_batches(prompts, 4) == [[1, 4, 3], [5, 0, 6, 2]]
    assert generation_batches(prompts, 100) == [[1, 4, 3, 5, 0, 6, 2]]
    assert generation_batches([], 3) == []
    with pytest.raises(UserError, match="at least one"):
        generation_batches(prompts, 0)
