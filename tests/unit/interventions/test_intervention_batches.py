"""Invariants over whole passes: nothing from nothing, each row for itself, in the prompt and in what is generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from latentbench.adapters import Codes, Dictionary, RouteSae, steering_edits, steering_rows
from latentbench.errors import UserError
from latentbench.interventions import BoundIntervention, ChangeLatents, RowsEdit, intervention_edits
from latentbench.lm import LM, Edit, EditView, Site, TokenBatch

Make = Callable[..., BoundIntervention]
Rows = Sequence[Sequence[BoundIntervention]]
F64 = torch.float64
SITE = Site("resid_post", 2)
ROUTED = [Site("resid_post", layer) for layer in range(1, 5)]


def logits_of(lm: LM, tokens: TokenBatch, rows: Rows, **options: Any) -> Tensor:
    found = lm.forward(tokens, edits=intervention_edits(rows, **options)).logits
    assert found is not None
    return found


@pytest.fixture
def plain(lm: LM, tokens: TokenBatch) -> Tensor:
    logits = lm.forward(tokens).logits
    assert logits is not None
    return logits


@pytest.fixture
def mixed(made: Callable[[str], Dictionary], latent: Make, dense: Make, draw: Callable[..., Tensor]) -> Rows:
    """Rows of different operators, latents, dictionaries, sites, phases and numbers of interventions."""
    routed, cross, sae = made("routesae"), made("crosscoder"), made("standardised")
    return [
        [
            latent(routed, [3, 9], operator="add", amounts=[4.0, -2.0]),
            latent(sae, [5], operator="set", amounts=[6.0], keep_error=False),
        ],
        [],
        [
            dense(SITE, draw(16, seed=2), operator="add", amounts=[1.5], positions="last"),
            latent(cross, [7], operator="min_clamp", amounts=[3.0]),
            dense(SITE, draw(16, seed=3), operator="subspace_clamp", amounts=[4.0], phases="decode"),
        ],
        [
            latent(sae, [11], operator="add", amounts=[5.0], positions="from_token", first_token=3),
            latent(routed, [20], operator="scale", amounts=[-3.0]),
            latent(routed, [21], operator="add", amounts=[5.0], mode="code", phases="prefill"),
        ],
    ]


def test_empty_rows_leave_every_bit_as_it_is(lm: LM, tokens: TokenBatch, plain: Tensor) -> None:
    assert intervention_edits([[], [], [], []]) == []
    assert torch.equal(logits_of(lm, tokens, [[], [], [], []]), plain)


def test_factor_0_leaves_every_bit_as_it_is(
    dictionary: Dictionary, lm: LM, tokens: TokenBatch, plain: Tensor, latent: Make, dense: Make
) -> None:
    nothing = latent(dictionary, [3, 17], operator="add", amounts=[0.0, 0.0])
    still = latent(dictionary, [3, 17], operator="scale", amounts=[1.0, 1.0])
    for rows in ([[nothing]] * 4, [[still]] * 4, [[nothing, still], [], [still], [nothing]]):
        assert torch.equal(logits_of(lm, tokens, rows), plain)
    vector = dense(SITE, torch.ones(16), operator="add", amounts=[0.0])
    assert torch.equal(logits_of(lm, tokens, [[vector]] * 4), plain)


def test_an_empty_row_beside_others_keeps_every_bit(
    lm: LM, tokens: TokenBatch, plain: Tensor, mixed: Rows
) -> None:
    after = logits_of(lm, tokens, mixed)
    assert torch.equal(after[1], plain[1])
    assert all(not torch.allclose(after[row], plain[row]) for row in (0, 2, 3))


def test_a_latent_set_to_what_it_is_changes_no_bit(
    made: Callable[[str], Dictionary], lm: LM, rows: list[list[int]], latent: Make
) -> None:
    """At one token of one row, where its value is known; other operators that amount to the same as well."""
    dictionary = made("topk")
    batch = lm.batch(rows[:1])
    acts = lm.forward(batch, capture=[SITE]).acts[SITE]
    codes = dictionary.encode({SITE: acts[0, -1:]})
    active = int(codes.latents[0])
    value = float(codes.values[0])
    silent = next(i for i in range(48) if i not in codes.latents.tolist())
    baseline = lm.forward(batch).logits
    assert baseline is not None
    for operator, latents, amounts in (
        ("set", [active, silent], [value, 0.0]),
        ("min_clamp", [active, silent], [value, -1.0]),
        ("ablate", [silent], []),
    ):
        bound = latent(dictionary, latents, operator=operator, amounts=amounts, positions="last")
        assert torch.equal(logits_of(lm, batch, [[bound]]), baseline)
    moved = latent(dictionary, [active], operator="set", amounts=[value + 1], positions="last")
    assert not torch.allclose(logits_of(lm, batch, [[moved]]), baseline)


def test_a_latents_difference_is_an_addition(
    dictionary: Dictionary, lm: LM, tokens: TokenBatch, latent: Make
) -> None:
    """Encoding, adding to the code and writing the difference is the same as adding the direction."""
    bound = latent(dictionary, [3, 17], operator="add", amounts=[2.0, -4.0])
    edits = intervention_edits([[bound]] * 4)
    assert not any(isinstance(edit, ChangeLatents) for edit in edits)
    replacing = latent(dictionary, [3, 17], operator="add", amounts=[2.0, -4.0], keep_error=False)
    through = [as_kept(edit) for edit in intervention_edits([[replacing]] * 4)]
    one, other = (lm.forward(tokens, edits=found).logits for found in (edits, through))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def as_kept(edit: Edit) -> Edit:
    """The same change of codes with the error kept, which the public records turn into an addition."""
    from dataclasses import replace

    assert isinstance(edit, ChangeLatents)
    return replace(edit, plan=replace(edit.plan, replaces=torch.zeros_like(edit.plan.replaces)))


def test_ablating_is_setting_to_0(dictionary: Dictionary, lm: LM, tokens: TokenBatch, latent: Make) -> None:
    for keep_error in (True, False):
        ablated = latent(dictionary, [3, 17], operator="ablate", keep_error=keep_error)
        zeros = latent(dictionary, [3, 17], operator="set", amounts=[0.0, 0.0], keep_error=keep_error)
        both = (logits_of(lm, tokens, [[bound]] * 4) for bound in (ablated, zeros))
        assert torch.equal(*both)


def test_each_row_is_what_it_would_be_alone(
    lm: LM, rows: list[list[int]], tokens: TokenBatch, mixed: Rows
) -> None:
    for side in ("left", "right"):
        together = logits_of(lm, lm.batch(rows, side), mixed)
        for index, row in enumerate(rows):
            alone = logits_of(lm, lm.batch([row]), [mixed[index]])[0]
            ours = together[index, -len(row) :] if side == "left" else together[index, : len(row)]
            torch.testing.assert_close(ours, alone, rtol=0, atol=1e-9)


def test_generated_texts_are_what_they_would_be_alone_with_and_without_a_cache(
    lm: LM, rows: list[list[int]], mixed: Rows
) -> None:
    together = lm.generate(rows, max_new_tokens=8, edits=intervention_edits(mixed), stop_ids=()).tokens
    slow = lm.generate(rows, max_new_tokens=8, edits=intervention_edits(mixed), stop_ids=(), use_cache=False)
    assert slow.tokens == together
    plain = lm.generate(rows, max_new_tokens=8, stop_ids=()).tokens
    assert together[1] == plain[1]
    assert together != plain
    for index, row in enumerate(rows):
        edits = intervention_edits([mixed[index]])
        assert lm.generate([row], max_new_tokens=8, edits=edits, stop_ids=()).tokens == [together[index]]


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("phases", ["prefill", "decode", "both"])
def test_every_step_of_a_phase_is_edited(
    lm: LM,
    rows: list[list[int]],
    latent: Make,
    made: Callable[[str], Dictionary],
    phases: str,
    use_cache: bool,
) -> None:
    """The prompt, and each generated token but the last, which no pass reads any more."""
    bound = latent(made("topk"), [3], operator="add", amounts=[3.0], phases=phases)
    (edit,) = intervention_edits([[bound]] * 4)
    spy = Spy(edit)
    lm.generate(rows, max_new_tokens=6, edits=[spy], stop_ids=(), use_cache=use_cache)
    assert len(spy.changed) == 1 + 5
    prompt = torch.tensor([len(row) - 1 for row in rows])
    new = torch.arange(6) if not use_cache else torch.tensor([0, 1, 1, 1, 1, 1])
    for step, changed in enumerate(spy.changed):
        expected = torch.zeros(4, dtype=torch.int64)
        if phases != "decode" and (step == 0 or not use_cache):
            expected += prompt
        if phases != "prefill":
            expected += new[step]
        assert torch.equal(changed, expected), step


class Spy(Edit):
    """Counts the tokens of each row that an edit changes, pass by pass."""

    def __init__(self, inner: Edit) -> None:
        self.inner = inner
        self.site = inner.site
        self.observes = inner.observes
        self.changed: list[Tensor] = []

    def apply(self, hidden: Tensor, view: EditView) -> Tensor:
        after = self.inner.apply(hidden, view)
        self.changed.append((after != hidden).any(dim=-1).sum(dim=1))
        return after


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("record", "skip_first", "expected"),
    [
        ({"positions": "all"}, 1, [range(1, 11), range(1, 7), range(1, 9), range(1, 4)]),
        ({"positions": "all"}, 0, [range(11), range(7), range(9), range(4)]),
        ({"positions": "no_bos"}, 0, [range(1, 11), range(1, 7), range(1, 9), range(1, 4)]),
        ({"positions": "no_bos"}, 2, [range(2, 11), range(2, 7), range(2, 9), range(2, 4)]),
        ({"positions": "last"}, 1, [[10], [6], [8], [3]]),
        ({"positions": "from_token", "first_token": 5}, 1, [range(5, 11), range(5, 7), range(5, 9), []]),
        ({"positions": "all", "phases": "decode"}, 1, [[], [], [], []]),
    ],
)
def test_positions_are_counted_in_each_rows_own_tokens(
    lm: LM,
    rows: list[list[int]],
    dense: Make,
    record: dict[str, Any],
    skip_first: int,
    expected: list[Sequence[int]],
    side: Any,
) -> None:
    bound = dense(SITE, torch.ones(16), operator="add", amounts=[1.0], **record)
    batch = lm.batch(rows, side)
    edits = intervention_edits([[bound]] * 4, skip_first=skip_first)
    after, before = (lm.forward(batch, edits=e, capture=[SITE]).acts[SITE] for e in (edits, []))
    changed = (after != before).any(dim=-1)
    found = [batch.positions[row][changed[row]].tolist() for row in range(4)]
    assert found == [list(positions) for positions in expected]
    assert not bool(changed[~batch.real].any())


def test_dense_vectors_can_follow_a_router(
    lm: LM, tokens: TokenBatch, made: Callable[[str], Dictionary], draw: Callable[..., Tensor]
) -> None:
    from latentbench.interventions import Intervention, bind, dictionary_sha256, vector_payload

    routed = made("routesae")
    vector = draw(16)
    bounds = []
    for site in ROUTED:
        record = Intervention(
            operator="add",
            amounts=(1.0,),
            vector=vector_payload(site, vector),
            dictionary=dictionary_sha256(routed),
            positions="routed",
        )
        bounds.append(bind(record, routed, vector))
    edits = intervention_edits([bounds, [], bounds, bounds])
    clean = lm.forward(tokens, capture=ROUTED).acts
    after = lm.forward(tokens, edits=edits[:1], capture=ROUTED[:1]).acts[ROUTED[0]]
    measured = tokens.measured()
    measured[1] = False
    route = routed.encode({site: clean[site][measured] for site in ROUTED}).context["route"]
    changed = (after != clean[ROUTED[0]]).any(dim=-1)
    assert torch.equal(changed[measured], route == 0)
    assert not bool(changed[~measured].any())
    assert 0 < int((route == 0).sum()) < len(route)


def test_two_latents_at_one_site_both_act(
    dictionary: Dictionary, lm: LM, tokens: TokenBatch, latent: Make, plain: Tensor
) -> None:
    one, other = (latent(dictionary, [i], operator="set", amounts=[4.0]) for i in (3, 17))
    together = latent(dictionary, [3, 17], operator="set", amounts=[4.0, 4.0])
    alone = [logits_of(lm, tokens, [[bound]] * 4) for bound in (one, other)]
    joint = logits_of(lm, tokens, [[together]] * 4)
    for logits in (*alone, plain):
        assert not torch.allclose(joint, logits)


def test_additions_in_raw_units_come_in_any_order(
    lm: LM, tokens: TokenBatch, made: Callable[[str], Dictionary], latent: Make, dense: Make, draw: Any
) -> None:
    def adds(conflict: str) -> list[BoundIntervention]:
        return [
            latent(made("topk"), [3], operator="add", amounts=[3.0], conflict=conflict),
            latent(made("jumprelu"), [8], operator="add", amounts=[-2.0], conflict=conflict),
            dense(SITE, draw(16), operator="add", amounts=[0.5], conflict=conflict),
        ]

    forwards = logits_of(lm, tokens, [adds("sequence")] * 4)
    backwards = logits_of(lm, tokens, [adds("sequence")[::-1]] * 4)
    summed = logits_of(lm, tokens, [adds("sum")] * 4)
    torch.testing.assert_close(forwards, backwards, rtol=0, atol=1e-10)
    torch.testing.assert_close(forwards, summed, rtol=0, atol=1e-10)


def test_order_matters_to_what_reads_the_activation(
    lm: LM, tokens: TokenBatch, made: Callable[[str], Dictionary], latent: Make, dense: Make, draw: Any
) -> None:
    """Sets see what additions before them left, unless they are summed."""
    vector, dictionary = draw(16), made("topk")

    def pair(conflict: str) -> list[BoundIntervention]:
        return [
            dense(SITE, vector, operator="add", amounts=[4.0], conflict=conflict),
            latent(dictionary, [3], operator="set", amounts=[3.0], conflict=conflict),
        ]

    def acts(rows: Rows) -> Tensor:
        return lm.forward(tokens, edits=intervention_edits(rows), capture=[SITE]).acts[SITE]

    forwards, backwards = acts([pair("sequence")] * 4), acts([pair("sequence")[::-1]] * 4)
    assert not torch.allclose(forwards, backwards, atol=1e-3)
    summed = acts([pair("sum"), pair("sum")[::-1]] * 2)
    before = lm.forward(tokens, capture=[SITE]).acts[SITE]
    parts = [acts([[bound]] * 4) - before for bound in pair("sum")]
    torch.testing.assert_close(summed, before + parts[0] + parts[1], rtol=0, atol=1e-12)


def test_a_mixed_batch_may_sum_in_some_rows_and_not_in_others(
    lm: LM, tokens: TokenBatch, made: Callable[[str], Dictionary], latent: Make
) -> None:
    def pair(conflict: str) -> list[BoundIntervention]:
        return [
            latent(made("standardised"), [i], operator=operator, amounts=[9.0], conflict=conflict)
            for i, operator in ((3, "add"), (17, "set"))
        ]

    mixed = [pair("sum"), pair("sequence"), [], pair("sum")]
    together = logits_of(lm, tokens, mixed)
    all_sum, all_turn = (logits_of(lm, tokens, [pair(how)] * 4) for how in ("sum", "sequence"))
    torch.testing.assert_close(together[[0, 3]], all_sum[[0, 3]], rtol=0, atol=1e-10)
    torch.testing.assert_close(together[1], all_turn[1], rtol=0, atol=1e-10)
    assert not torch.allclose(all_sum[1], all_turn[1], atol=1e-4)


def test_conflicts_are_refused_where_the_records_say_so(
    made: Callable[[str], Dictionary], latent: Make, dense: Make
) -> None:
    def at(site: Site, conflict: str, phases: str = "both") -> BoundIntervention:
        return dense(site, torch.ones(16), operator="add", amounts=[1.0], conflict=conflict, phases=phases)

    with pytest.raises(UserError, match=r"row 1 meet at resid_post.2.*'sequence' or 'sum'"):
        intervention_edits([[], [at(SITE, "error"), at(SITE, "error")]])
    with pytest.raises(UserError, match="'error' and 'sum': say the same in all of them"):
        intervention_edits([[at(SITE, "error"), at(SITE, "sum")]])
    routed, cross = made("routesae"), made("crosscoder")
    clash = [
        latent(routed, [1], operator="add", amounts=[1.0], conflict="error"),
        latent(cross, [1], operator="add", amounts=[1.0], conflict="error"),
    ]
    with pytest.raises(UserError, match=r"resid_post.1, resid_post.3"):
        intervention_edits([clash])
    replacing = [
        latent(made(name), [1], operator="ablate", keep_error=False, conflict="sum")
        for name in ("topk", "jumprelu")
    ]
    with pytest.raises(UserError, match="replacements can't be summed"):
        intervention_edits([replacing])
    fine = [[at(SITE, "error"), at(Site("resid_post", 3), "error")], [at(SITE, "error")]]
    fine += [[at(SITE, "error", "prefill"), at(SITE, "error", "decode")]]
    assert len(intervention_edits(fine)) > 0


def test_rows_share_edits_and_pay_only_for_their_own_encoders(
    lm: LM,
    tokens: TokenBatch,
    made: Callable[[str], Dictionary],
    latent: Make,
    dense: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sae = made("topk")
    adding = [[latent(sae, [row], operator="add", amounts=[float(row)])] for row in range(4)]
    assert len(intervention_edits(adding)) == 1
    dense_rows = [
        [dense(SITE, torch.full((16,), row + 1.0), operator="add", amounts=[1])] for row in range(4)
    ]
    assert len(intervention_edits(dense_rows)) == 1
    operators = [("set", [2.0]), ("min_clamp", [2.0]), ("scale", [2.0]), ("ablate", [])]
    changing = [
        [latent(sae, [row], operator=op, amounts=am, keep_error=row > 1)]
        for row, (op, am) in enumerate(operators)
    ]
    assert len(intervention_edits(changing)) == 1

    seen: list[int] = []
    encode = type(sae).encode

    def counting(self: Dictionary, acts: dict[Site, Tensor]) -> Codes:
        codes = encode(self, acts)
        seen.append(codes.n_tokens)
        return codes

    monkeypatch.setattr(type(sae), "encode", counting)
    logits_of(lm, tokens, [adding[0], dense_rows[1], adding[2], []])
    assert seen == []
    logits_of(lm, tokens, [adding[0], [], changing[2], dense_rows[3]])
    assert seen == [8], "only the third row's tokens behind its first"


def test_no_shadow_pass_runs_unless_a_row_needs_one(
    lm: LM, rows: list[list[int]], made: Callable[[str], Dictionary], latent: Make, dense: Make
) -> None:
    def shadow(names: Sequence[str], operator: str) -> int:
        bounds = [
            [latent(made(name), [3], operator=operator, amounts=[2.0])] if name else [] for name in names
        ]
        edits = intervention_edits(bounds)
        return lm.generate(rows, max_new_tokens=2, edits=edits, stop_ids=()).shadow_tokens

    assert shadow(["topk", "", "standardised", "jumprelu"], "add") == 0
    assert shadow(["topk", "", "standardised", "jumprelu"], "set") == 0
    assert shadow(["crosscoder", "", "transcoder", ""], "add") == 0
    for needy, operator in (("routesae", "add"), ("crosscoder_standardised", "add"), ("crosscoder", "set")):
        assert shadow([needy, "", "", ""], operator) > 0


def test_hooks_are_gone_after_an_exception(
    lm: LM, tokens: TokenBatch, plain: Tensor, made: Callable[[str], Dictionary], latent: Make
) -> None:
    bound = latent(made("routesae"), [3], operator="set", amounts=[9.0])
    with pytest.raises(UserError, match="interventions of 3 rows in a batch of 4"):
        logits_of(lm, tokens, [[bound]] * 3)
    again = lm.forward(tokens).logits
    assert again is not None
    assert torch.equal(again, plain)


def test_interventions_and_models_of_other_types_work_together(
    lm: LM, tokens: TokenBatch, dictionary: Dictionary, latent: Make
) -> None:
    coarse = dictionary.to(dtype=torch.float32)
    for operator in ("add", "set", "subspace_clamp"):
        one, other = (
            logits_of(lm, tokens, [[latent(d, [3], operator=operator, amounts=[3.0])]] * 4)
            for d in (coarse, dictionary)
        )
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_the_old_steering_edits_agree(
    dictionary: Dictionary, lm: LM, tokens: TokenBatch, latent: Make
) -> None:
    bound = latent(dictionary, [3], operator="add", amounts=[2.5])
    rows = 2.5 * steering_rows(dictionary, [3]).expand(4, -1)
    old = lm.forward(tokens, edits=steering_edits(dictionary, rows)).logits
    torch.testing.assert_close(logits_of(lm, tokens, [[bound]] * 4), old, rtol=0, atol=1e-10)


def test_edits_say_what_they_add(tokens: TokenBatch, view: EditView, mixed: Rows, clean: Any) -> None:
    """`change` is what `apply` adds, and 0 on padding and in empty rows."""
    for edit in intervention_edits(mixed):
        assert isinstance(edit, RowsEdit)
        hidden = clean[edit.site]
        change = edit.change(hidden, view)
        torch.testing.assert_close(edit.apply(hidden, view), hidden + change)
        assert not bool(change[1].any())
        assert not bool(change[~tokens.measured()].any())


def test_routed_latents_are_written_once_per_token(
    lm: LM, tokens: TokenBatch, made: Callable[[str], Dictionary], latent: Make, clean: Any, view: EditView
) -> None:
    routed = made("routesae")
    assert isinstance(routed, RouteSae)
    for operator in ("add", "set"):
        edits = intervention_edits([[latent(routed, [3], operator=operator, amounts=[9.0])]] * 4)
        changed = sum(
            (edit.apply(clean[edit.site], view) != clean[edit.site]).any(-1).long() for edit in edits
        )
        assert torch.equal(torch.as_tensor(changed), tokens.measured().long())
