"""The judge's client against bare calls of the `openai` package, on a server that answers at once."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from timing import Bench, alternate, compared, rate

from latentbench.judging import make_judge
from latentbench_judges import MarkedText, Question, load_rubric

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "judges"))
from fake_server import FakeServer, Reply

CALLS, AT_ONCE = 300, 32


def answer(_body: dict[str, Any], _number: int) -> Reply:
    """A verdict at once."""
    return {"content": json.dumps({"explanation": "x", "category": "low_level", "score": 4})}


def questions(turn: int) -> list[Question]:
    """Questions of ten contexts each, none asked before."""
    rubric = load_rubric("monosemanticity")
    found = []
    for number in range(CALLS):
        contexts = tuple(
            MarkedText(
                (f"In turn {turn} the {n}th of many ", f"words{number}", " was marked here."), (0.0, 3.0, 0.0)
            )
            for n in range(10)
        )
        found.append(Question(f"q{number}", rubric, {"contexts": contexts}, strengths=True))
    return found


async def bare(url: str, bodies: list[dict[str, Any]]) -> None:
    """The same requests without anything around them."""
    import openai

    client = openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0)
    left = iter(bodies)

    async def work() -> None:
        for body in left:
            completion = await client.chat.completions.create(**body)
            assert completion.choices[0].message.content

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    await client.close()


def measure_judging(bench: Bench) -> list[dict[str, Any]]:
    """Calls a second, everything included that `answers` does: fences, cache, caps, ledger, parsing."""
    turn = iter(range(10**6))
    os.environ.setdefault("LATENTBENCH_JUDGE_KEY", "none")
    with FakeServer(answer) as server, tempfile.TemporaryDirectory() as folder:
        options = {"url": server.url, "concurrency": AT_ONCE, "cache": f"{folder}/r", "ledger": f"{folder}/l"}
        judge = make_judge("openai:judge-1", options)

        def plain() -> None:
            schema = {"name": "m", "strict": True, "schema": load_rubric("monosemanticity").schema_}
            form = {"type": "json_schema", "json_schema": schema}
            bodies = [
                {
                    "model": "judge-1",
                    "messages": one.messages("0" * 16),
                    "temperature": 0.0,
                    "seed": 0,
                    "max_tokens": 1024,
                    "extra_body": {"response_format": form},
                }
                for one in questions(next(turn))
            ]
            asyncio.run(bare(server.url, bodies))

        def ours() -> None:
            found = list(judge.answers(questions(next(turn))))
            assert len(found) == CALLS
            assert all(one.status == "ok" and not one.stored for one in found)

        seconds = alternate(bench, {"bare": plain, "judge": ours})
    return [
        compared(
            bench,
            "judging",
            seconds["bare"],
            seconds["judge"],
            tokens_per_second=rate(CALLS, seconds["judge"]),
            bare_tokens_per_second=rate(CALLS, seconds["bare"]),
            note=f"calls a second (in the columns of tokens), {AT_ONCE} at once / bare openai calls of the same "
            "requests; the server shares this process",
        )
    ]
