"""The language model as lm-evaluation-harness asks it, with edits on.

lm-eval's own model type `steered` is not used: its additive path raises, two latents at one site overwrite each other,
and its response cache answers with unsteered results. Importing this module imports lm-eval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from latentbench.errors import UserError
from latentbench.identity import sha256_json
from latentbench.lm import LM, Edit

__all__ = ["EditedLM", "EditsFor"]

Bos = Literal["tokenizer", "always", "never"]
"""Whether texts begin with a BOS token; see `LM.tokenize`."""
EditsFor = Callable[[int], Sequence[Edit]]
"""The edits of a batch with so many rows."""

_NO_WINDOW = 2048
"""Tokens of a row for a model that does not say how many it takes; lm-eval's own default."""
_MAX_NEW_TOKENS = 256
"""Where a task does not say; lm-eval's own default."""
_GREEDY_KEYS = {"until", "do_sample", "temperature", "max_gen_toks"}


class _Wanted(NamedTuple):
    """A continuation to score behind one row."""

    place: int
    tokens: tuple[int, ...]


class EditedLM(TemplateLM):  # type: ignore[misc]
    """A latentbench model under fixed edits that answers lm-eval's three kinds of request.

    Rows are sorted by length and padded on the left, so that only the logits in front of continuations are computed.
    Rows too long for the window lose tokens at their start. Continuations of one token behind one context share a row.
    """

    def __init__(self, lm: LM, edits: EditsFor, *, bos: Bos, batch_rows: int, seed: int = 0) -> None:
        """A model for `lm_eval.evaluator`.

        Args:
            lm: the model, with a tokenizer.
            edits: what is changed in every pass.
            bos: the suite's policy ("tokenizer", "always" or "never").
            batch_rows: rows of a forward pass.
            seed: of sampling, for the generation tasks that sample.

        Raises:
            UserError: the model has no tokenizer.
        """
        super().__init__()
        if lm.tokenizer is None:
            raise UserError(f"{lm.name} was loaded without a tokenizer: lm-eval's tasks are texts")
        self.lm = lm
        self.edits = edits
        self.bos = bos
        self.batch_rows = batch_rows
        self.seed = seed
        self.tokenizer = lm.tokenizer
        self.broken: dict[str, str] = {}
        """Why replies ended before their time, by prompt; for those whose logits were no longer finite."""

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What a text without a context is conditioned on: the BOS token, or the end token where there is none."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def max_length(self) -> int:
        """Tokens that a row may have."""
        return self.lm.window or _NO_WINDOW

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids; a BOS token as the suite's policy has it, and none where lm-eval asks for none."""
        bos: Bos = "never" if add_special_tokens is False else self.bos
        return self.lm.tokenize([string], 10**9, bos=bos)[0]

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """As lm-eval splits them; a continuation that melts into the context's last token takes that token over."""
        before, behind = super()._encode_pair(context, continuation)
        return (before, behind) if behind else (before[:-1] or [self.prefix_token_id], before[-1:])

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """See lm-eval: the continuation's log-probability in nats, and whether greedy decoding gives it."""
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """See lm-eval: log-probability of whole texts, in windows that follow one another."""
        windows, owners = [], []
        for owner, request in enumerate(requests):
            rolling = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for window in rolling:
                windows.append((None, *make_disjoint_window(window)))
                owners.append(owner)
        totals = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += value
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """See lm-eval: continuations up to a stop string; greedy, or sampled at a temperature with seeded noise.

        Raises:
            UserError: a task asks for a way of decoding that is not there.
        """
        found = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(sha256_json(request.args[1]), []).append(place)
        for key, places in groups.items():
            settings = self._decoding(requests[places[0]].args[1])
            room = self.max_length - settings["max_gen_toks"]
            if room < 1:
                raise UserError(
                    f"a task asks for {settings['max_gen_toks']} new tokens, and {self.lm.name} takes rows of "
                    f"{self.max_length}: nothing is left for the prompt"
                )
            rows = {place: self.tok_encode(requests[place].args[0])[-room:] for place in places}
            order = sorted(places, key=lambda place: (-len(rows[place]), place))
            for batch in self._batches(order):
                seeds = [self._noise(key, place) for place in batch] if settings["do_sample"] else None
                prompts = [requests[place].args[0] for place in batch]
                texts = self._continue(prompts, [rows[place] for place in batch], settings, seeds)
                for place, text in zip(batch, texts, strict=True):
                    found[place] = text
        return found

    def _decoding(self, given: dict[str, Any]) -> dict[str, Any]:
        settings: dict[str, Any] = dict(normalize_gen_kwargs(given, _MAX_NEW_TOKENS))
        unknown = sorted(set(settings) - _GREEDY_KEYS)
        if unknown:
            raise UserError(
                f"a task wants to decode with {', '.join(unknown)}, which is not there: leave the task out, or use one "
                "that decodes greedily or at a temperature"
            )
        return settings

    def _noise(self, settings: str, place: int) -> int:
        """Seed of one request's sampling: the same in all conditions, whatever else is in the batch."""
        return int(sha256_json([self.seed, settings, place])[:15], 16)

    def _continue(
        self,
        prompts: list[str],
        rows: list[list[int]],
        settings: dict[str, Any],
        seeds: list[int] | None,
    ) -> list[str]:
        until = [stop for stop in settings["until"] if stop]
        out = self.lm.generate(
            rows,
            max_new_tokens=settings["max_gen_toks"],
            edits=self.edits(len(rows)),
            temperature=float(settings["temperature"]) if seeds else 0.0,
            seeds=seeds,
            stop_ids=self._stop_ids(until),
        )
        self.broken |= {
            prompt: why for prompt, why in zip(prompts, out.broken, strict=True) if why is not None
        }
        return [
            postprocess_generated_text(self.tokenizer.decode(tokens, skip_special_tokens=True), until, None)
            for tokens in out.tokens
        ]

    def _stop_ids(self, until: Sequence[str]) -> frozenset[int]:
        """Tokens that end a row: the model's own, and those that begin with a stop string, whatever follows."""
        begin = tuple(until)
        ending = {token for token, text in enumerate(self._token_texts) if begin and text.startswith(begin)}
        return self.lm.eos_ids | ending

    @cached_property
    def _token_texts(self) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode([[token] for token in range(self.lm.vocab_size)])
        return texts

    def _batches(self, order: Sequence[Any]) -> Iterator[Sequence[Any]]:
        for start in range(0, len(order), self.batch_rows):
            yield order[start : start + self.batch_rows]

    def _loglikelihood_tokens(
        self, requests: Iterable[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """Score tokenised pairs. The last token of a row is predicted and not read."""
        rows: dict[tuple[int, ...], list[_Wanted]] = {}
        count = 0
        for place, (_text, context, continuation) in enumerate(requests):
            if len(continuation) > self.max_length:
                raise UserError(
                    f"a continuation of {len(continuation)} tokens is longer than the window of {self.lm.name}, "
                    f"{self.max_length} tokens: leave its task out"
                )
            row = tuple([*context, *continuation][-(self.max_length + 1) :][:-1])
            rows.setdefault(row, []).append(_Wanted(place, tuple(continuation)))
            count += 1
        found: list[tuple[float, bool]] = [(0.0, False)] * count
        order = sorted(rows, key=lambda row: (-len(row), row))
        for batch in self._batches(order):
            for place, scored in self._scored([(row, rows[row]) for row in batch]):
                found[place] = scored
        return found

    def _scored(
        self, batch: Sequence[tuple[tuple[int, ...], list[_Wanted]]]
    ) -> Iterator[tuple[int, tuple[float, bool]]]:
        """Place and score of every continuation of one batch."""
        columns = max(len(wanted.tokens) for _, several in batch for wanted in several)
        tokens = self.lm.batch([row for row, _ in batch], side="left")
        logits = self.lm.forward(tokens, edits=self.edits(len(batch)), last_logits=columns).logits
        assert logits is not None
        for index, (_, several) in enumerate(batch):
            for wanted in several:
                predicted = logits[index, -len(wanted.tokens) :].float().log_softmax(dim=-1)
                targets = torch.tensor(wanted.tokens, device=predicted.device)
                value = predicted.gather(1, targets[:, None]).sum()
                greedy = bool((predicted.argmax(dim=-1) == targets).all())
                yield wanted.place, (float(value), greedy)
