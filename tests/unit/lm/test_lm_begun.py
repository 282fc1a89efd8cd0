"""Rows that are begun once and continued often: the same tokens as from the start, and the draft's logits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from latentbench.adapters import steering_edits
from latentbench.errors import UserError
from latentbench.lm import LM, AddVector, Edit, Site
from latentbench.testing import random_routesae

Draw = Callable[..., Tensor]
SITE = Site("resid_post", 1)
ROUTED = [Site("resid_post", layer) for layer in (1, 2)]
NEW = 6
COPIES = 4


def steered(draw: Draw, width: int) -> list[Edit]:
    """Another vector for every copy, none for the first."""
    vectors = draw(COPIES, width, seed=3) * torch.arange(COPIES)[:, None]
    return [AddVector(SITE, vectors)]


def from_start(lm: LM, prompt: list[int], edits: list[Edit], new: int = NEW) -> list[list[int]]:
    return lm.generate([prompt] * COPIES, max_new_tokens=new, edits=edits, stop_ids=()).tokens


@pytest.mark.parametrize("length", [0, 2, NEW, NEW + 3])
def test_continuations_are_those_from_the_start(
    llama: LM, rows: list[list[int]], draw: Draw, length: int
) -> None:
    prompt, edits = rows[0], steered(draw, llama.d_model)
    wanted = from_start(llama, prompt, edits)
    assert len({tuple(row) for row in wanted}) > 1, "the edits must tell the copies apart"
    draft = llama.generate([prompt], max_new_tokens=max(length, 1), stop_ids=()).tokens[0][:length]
    begun = llama.begin_below(prompt, draft, SITE)
    found = llama.continue_begun(begun, COPIES, max_new_tokens=NEW, edits=edits, stop_ids=())
    assert found.tokens == wanted
    assert found.draft_logits is not None
    assert found.draft_logits.shape == (COPIES, length + 1, llama.vocab_size)


def test_every_family_continues_what_it_has_room_for(lm: LM, rows: list[list[int]], draw: Draw) -> None:
    prompt = rows[0][:4]
    edits = steered(draw, lm.d_model)
    edits = [AddVector(edit.site, edit.vectors.to(lm.dtype)) for edit in edits if isinstance(edit, AddVector)]
    wanted = from_start(lm, prompt, list(edits), new=2)
    begun = lm.begin_below(prompt, wanted[0][:1], SITE)
    assert lm.continue_begun(begun, COPIES, max_new_tokens=2, edits=edits, stop_ids=()).tokens == wanted


def test_a_full_attention_window_is_refused(lm: LM, rows: list[list[int]], family: str) -> None:
    if not family.startswith("gemma"):
        assert lm.begin_below(rows[2], [], SITE).stem.hidden is not None
        return
    with pytest.raises(UserError, match="attention window"):
        lm.begin_below(rows[2], [], SITE)


def test_an_agreed_draft_costs_one_pass(llama: LM, rows: list[list[int]]) -> None:
    prompt = rows[0]
    draft = llama.generate([prompt], max_new_tokens=NEW, stop_ids=()).tokens[0]
    begun = llama.begin_below(prompt, draft, SITE)
    idle = [AddVector(SITE, torch.zeros(llama.d_model, dtype=llama.dtype))]
    found = llama.continue_begun(begun, COPIES, max_new_tokens=NEW, edits=idle, stop_ids=())
    assert found.tokens == [draft] * COPIES
    assert found.forward_tokens == COPIES * (len(prompt) + len(draft))


def test_stop_tokens_end_a_row_as_from_the_start(llama: LM, rows: list[list[int]], draw: Draw) -> None:
    prompt, edits = rows[0], steered(draw, llama.d_model)
    free = from_start(llama, prompt, edits)
    stops = {free[0][2]}
    wanted = llama.generate([prompt] * COPIES, max_new_tokens=NEW, edits=edits, stop_ids=stops)
    draft = free[0][: free[0].index(free[0][2])]
    begun = llama.begin_below(prompt, draft, SITE)
    found = llama.continue_begun(begun, COPIES, max_new_tokens=NEW, edits=edits, stop_ids=stops)
    assert (found.tokens, found.stopped) == (wanted.tokens, wanted.stopped)
    # all rows alike: accepted with its end
    same = llama.continue_begun(begun, 2, max_new_tokens=NEW, edits=[], stop_ids=stops)
    assert same.tokens == [draft] * 2
    assert same.stopped == [True] * 2


def test_draft_logits_are_those_of_a_plain_pass(llama: LM, rows: list[list[int]], draw: Draw) -> None:
    prompt, draft, edits = rows[0], [5, 9, 11], steered(draw, llama.d_model)
    begun = llama.begin_below(prompt, draft, SITE)
    found = llama.continue_begun(begun, COPIES, max_new_tokens=1, edits=edits, stop_ids=()).draft_logits
    plain = llama.forward(llama.batch([[*prompt, *draft]] * COPIES), edits=edits).logits
    assert found is not None
    assert plain is not None
    assert torch.allclose(found, plain[:, -4:], atol=1e-10)


@pytest.mark.parametrize("columns", [1, 5])
def test_columns_in_common_are_run_once(llama: LM, rows: list[list[int]], draw: Draw, columns: int) -> None:
    prompt = rows[0]
    base = draw(llama.d_model, seed=8) * 3
    shared: list[Edit] = [AddVector(SITE, base)]
    later = torch.zeros(COPIES, len(prompt), llama.d_model, dtype=llama.dtype)
    later[:, columns:] = steered(draw, llama.d_model)[0].vectors[:, None]  # type: ignore[attr-defined]
    both: list[Edit] = [*shared, AddVector(SITE, later)]
    wanted = from_start(llama, prompt, both)
    assert len({tuple(row) for row in wanted}) > 1
    begun = llama.begin_columns(prompt, wanted[0][:2], columns, shared)
    found = llama.continue_begun(begun, COPIES, max_new_tokens=NEW, edits=both, stop_ids=())
    assert found.tokens == wanted
    with pytest.raises(UserError, match="must be left"):
        llama.begin_columns(prompt, [], len(prompt), shared)


@pytest.mark.parametrize("below", [True, False])
def test_routed_edits_see_the_unedited_model(
    llama: LM, rows: list[list[int]], draw: Draw, *, below: bool
) -> None:
    prompt = rows[0]
    routed = random_routesae(ROUTED, router_scale=2.0, dtype=llama.dtype, d_model=llama.d_model)
    amounts = torch.ones(COPIES)[:, None] if not below else torch.arange(COPIES)[:, None]
    directions = draw(COPIES if below else 1, llama.d_model, seed=4).expand(COPIES, -1) * amounts * 2
    edits: list[Edit] = list(steering_edits(routed, directions))
    wanted = from_start(llama, prompt, edits)
    if below:
        begun = llama.begin_below(prompt, wanted[0][:3], ROUTED[0], observe=routed.reads)
    else:
        begun = llama.begin_columns(prompt, wanted[0][:3], 4, list(steering_edits(routed, directions[:1])))
    found = llama.continue_begun(begun, COPIES, max_new_tokens=NEW, edits=edits, stop_ids=())
    assert found.tokens == wanted


def test_edits_before_the_begun_site_act_on_generated_tokens(
    llama: LM, rows: list[list[int]], draw: Draw
) -> None:
    early = AddVector(
        Site("resid_post", 0), draw(COPIES, llama.d_model, seed=5) * 3, phases=frozenset({"decode"})
    )
    wanted = from_start(llama, rows[0], [early])
    assert len({tuple(row) for row in wanted}) > 1
    begun = llama.begin_below(rows[0], [], SITE)
    assert (
        llama.continue_begun(begun, COPIES, max_new_tokens=NEW, edits=[early], stop_ids=()).tokens == wanted
    )


def test_a_row_can_begin_later_where_its_own_columns_stay_as_they_are(
    llama: LM, rows: list[list[int]], draw: Draw
) -> None:
    later, edits = (
        Site("resid_post", 2),
        [AddVector(Site("resid_post", 2), draw(COPIES, llama.d_model, seed=3) * 3)],
    )
    begun = llama.begin_below(rows[0], [], SITE, observe=[later])
    wanted = from_start(llama, rows[0], list(edits))
    assert len({tuple(row) for row in wanted}) > 1
    found = llama.continue_begun(begun.at(later), COPIES, max_new_tokens=NEW, edits=edits, stop_ids=())
    assert found.tokens == wanted


def test_rows_are_begun_at_the_output_of_a_block(llama: LM, rows: list[list[int]]) -> None:
    with pytest.raises(UserError, match="resid_post site"):
        llama.begin_below(rows[0], [], Site("mlp_out", 1))
