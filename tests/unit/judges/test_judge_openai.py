"""The client against a real HTTP server that answers well, badly, late, or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fake_server import FakeServer, Reply

from latentbench.errors import UserError
from latentbench_judges import MarkedText, Question, load_rubric
from latentbench_judges._pace import Pace
from latentbench_judges._spending import Bound, Spending, bound, load_prices
from latentbench_judges._transport import Transport
from latentbench_judges.openai_judge import OpenAIJudge

T = TypeVar("T")
SECRET = "sk-test-0123456789abcdef"


def run_alone(scenario: Coroutine[Any, Any, T]) -> T:
    """In a thread: a browser's tests in the same process leave a loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, scenario).result()


def verdict(score: int = 4) -> str:
    return json.dumps({"explanation": "Rivers.", "category": "low_level", "score": score})


def question(number: int) -> Question:
    context = MarkedText(("a ", f"word{number}"), (0.0, 1.0))
    return Question(f"q{number}", load_rubric("monosemanticity"), {"contexts": (context,)})


def number_of(body: dict[str, Any]) -> int:
    """Which question a request is."""
    return int(body["messages"][1]["content"].split("<<word")[1].split(">>")[0])


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATENTBENCH_JUDGE_KEY", SECRET)


def judge(server: FakeServer, folder: Path, **options: Any) -> OpenAIJudge:
    given = {
        "url": server.url,
        "cache": folder / "replies.sqlite",
        "ledger": folder / "ledger.jsonl",
        **options,
    }
    return OpenAIJudge.make("judge-1", given)


def good(_body: dict[str, Any], _number: int) -> Reply:
    return {"content": verdict()}


def test_what_is_sent_and_what_comes_back(tmp_path: Path) -> None:
    with FakeServer(good) as server:
        one = judge(server, tmp_path, temperature=None, top_p=0.5)
        one.preflight()
        (answer,) = one.answers([question(1)])
    assert (answer.id, answer.key, answer.status, answer.verdict) == ("q1", question(1).key, "ok", 4)
    assert (answer.path, answer.model, answer.stored) == ("strict", "judge-1", False)
    assert answer.usage.prompt == 100
    (body,) = server.bodies
    assert body["response_format"]["json_schema"]["strict"] is True
    assert body["response_format"]["json_schema"]["schema"] == load_rubric("monosemanticity").schema_
    assert (body["seed"], body["top_p"], body["max_tokens"]) == (0, 0.5, 1024)
    assert "temperature" not in body
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert server.keys == {f"Bearer {SECRET}": 2}


def test_a_verdict_is_asked_for_once_and_a_failure_again(tmp_path: Path) -> None:
    def behave(body: dict[str, Any], number: int) -> Reply:
        return {"content": verdict() if number_of(body) % 2 else "nonsense"}

    with FakeServer(behave) as server:
        first = {one.id: one for one in judge(server, tmp_path).answers(map(question, range(6)))}
        asked = len(server.bodies)
        again = {one.id: one for one in judge(server, tmp_path).answers(map(question, range(6)))}
        assert (asked, len(server.bodies)) == (6, 9)
    assert Counter(one.status for one in first.values()) == {"ok": 3, "parse_failed": 3}
    assert {name for name, one in again.items() if one.stored} == {"q1", "q3", "q5"}
    assert again["q1"]._replace(stored=False, usage=first["q1"].usage) == first["q1"]


@pytest.mark.parametrize(
    "options",
    [{"temperature": 1.0}, {"seed": 1}, {"max_tokens": 99}, {"schema_mode": "prompt"}, {"expect": "judge-1"}],
)
def test_another_way_of_asking_is_another_key(tmp_path: Path, options: dict[str, Any]) -> None:
    with FakeServer(good) as server:
        list(judge(server, tmp_path).answers([question(1)]))
        list(judge(server, tmp_path, **options).answers([question(1)]))
        assert len(server.bodies) == 2
        replicate = Question("q", question(1).rubric, question(1).material, replicate=1)
        list(judge(server, tmp_path).answers([replicate]))
        assert len(server.bodies) == 3


def test_without_a_schema_the_form_is_described(tmp_path: Path) -> None:
    with FakeServer(good) as server:
        (answer,) = judge(server, tmp_path, schema_mode="prompt").answers([question(1)])
    assert answer.status == "ok"
    assert "response_format" not in server.bodies[0]
    assert "JSON object" in server.bodies[0]["messages"][1]["content"]


@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        ({"content": "no verdict"}, "parse_failed", "no verdict"),
        ({"content": verdict(9)}, "parse_failed", "JSON of another form"),
        ({"content": verdict()[:20], "finish": "length"}, "truncated", "max_tokens"),
        ({"content": None, "refusal": "I will not"}, "refused", "I will not"),
        ({"content": "", "finish": "content_filter"}, "filtered", "filter"),
        ({"status": 500, "error": "oh"}, "transport_error", "status 500: oh (tried 2 times)"),
        ({"drop": True}, "transport_error", "connection failed"),
        ({"stall": 5}, "transport_error", "no answer within 0.4 seconds"),
        ({"body": "{}"}, "transport_error", "no choices"),
        ({"body": "<html>"}, "transport_error", "no chat completion"),
        ({"body": '{"choices": 5}'}, "transport_error", "no chat completion"),
        ({"body": '{"choices": [{"message": "hi"}]}'}, "transport_error", "no chat completion"),
        ({"body": '{"choices": {"a": 1}}'}, "transport_error", "no chat completion"),
        ({"content": "\ud800 no verdict"}, "parse_failed", "no verdict"),
        ({"status": 429, "headers": {"retry-after": "0"}}, "transport_error", "status 429"),
    ],
)
def test_every_fault_has_its_status(tmp_path: Path, reply: Reply, status: str, reason: str) -> None:
    with FakeServer(lambda _body, _number: reply) as server:
        (answer,) = judge(server, tmp_path, attempts=2, timeout_seconds=0.4).answers([question(1)])
        assert answer.status == status
        assert reason in (answer.reason or "")
        assert answer.verdict is None
        assert len(server.bodies) == (2 if status == "transport_error" else 1)


def test_a_passing_fault_is_tried_again_when_the_server_says_so(tmp_path: Path) -> None:
    times = []

    def behave(_body: dict[str, Any], number: int) -> Reply:
        times.append(time.monotonic())
        return {"status": 429, "headers": {"retry-after": "0.7"}} if number == 1 else {"content": verdict()}

    with FakeServer(behave) as server:
        (answer,) = judge(server, tmp_path).answers([question(1)])
    assert answer.status == "ok"
    assert times[1] - times[0] >= 0.7


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({"status": 401, "error": f"Incorrect API key: {SECRET}"}, "check the key"),
        ({"status": 400, "error": "response_format is not supported"}, "schema_mode=prompt"),
        ({"status": 404, "error": "no such model"}, "check the judge's URL"),
        ({"status": 429, "error": "pay", "code": "insufficient_quota"}, "no money left"),
    ],
)
def test_what_no_further_try_would_mend_stops_the_run(tmp_path: Path, reply: Reply, message: str) -> None:
    with FakeServer(lambda _body, _number: reply) as server:
        with pytest.raises(UserError, match=message) as caught:
            list(judge(server, tmp_path).answers(map(question, range(3))))
        assert SECRET not in str(caught.value)
        assert SECRET not in "".join(traceback.format_exception(caught.value))  # what a failed record holds
        assert len(server.bodies) <= 4


def test_the_key_is_nowhere_written(tmp_path: Path) -> None:
    def behave(body: dict[str, Any], _number: int) -> Reply:
        return good(body, 0) if number_of(body) else {"status": 500, "error": f"key {SECRET}"}

    with FakeServer(behave) as s:
        one = judge(s, tmp_path, attempts=2)
        answers = list(one.answers(map(question, range(3))))
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert SECRET not in repr(answers) + repr(one.identity()) + repr(one.options) + written.decode("latin-1")
    assert any("[key]" in (answer.reason or "") for answer in answers)


def test_a_wrong_address_model_or_key_is_named_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeServer(good, models=["judge-2", "other"]) as server:
        with pytest.raises(UserError, match="has no model 'judge-1'; it has judge-2"):
            judge(server, tmp_path).preflight()
        url = server.url
    with FakeServer(good, models=None) as server:
        judge(server, tmp_path).preflight()  # no list of models: nothing is known
    with pytest.raises(UserError, match="no judge answers at"):
        OpenAIJudge.make("judge-1", {"url": url}).preflight()
    with pytest.raises(UserError, match="needs a model"):
        OpenAIJudge.make("", {})
    with pytest.raises(UserError, match="did you mean 'temperature'"):
        OpenAIJudge.make("m", {"temprature": 1})
    monkeypatch.delenv("LATENTBENCH_JUDGE_KEY")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="no key for https"):
        OpenAIJudge.make("m", {})
    monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}\n")
    assert OpenAIJudge.make("m", {}).key == SECRET
    with pytest.raises(UserError, match=r"is sent to https://api\.openai\.com/ alone"):
        OpenAIJudge.make("m", {"url": "https://elsewhere.example/v1"})
    monkeypatch.setenv("LATENTBENCH_JUDGE_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(UserError, match="can't be read"):
        OpenAIJudge.make("m", {"url": "https://elsewhere.example/v1"})
    (tmp_path / "key").write_text("from a file\n")
    assert OpenAIJudge.make("m", {"url": "https://elsewhere.example/v1"}).key == "from a file"


def test_another_model_than_expected_stops_the_run(tmp_path: Path) -> None:
    with FakeServer(lambda _body, _number: {"content": verdict(), "model": "judge-1-new"}) as server:
        with pytest.raises(UserError, match="answers as 'judge-1-new'"):
            list(judge(server, tmp_path, expect="judge-1-old").answers([question(1)]))
        (answer,) = judge(server, tmp_path).answers([question(1)])
    assert answer.model == "judge-1-new"


def test_a_server_that_changes_its_model_is_asked_once_and_the_mixture_shows(tmp_path: Path) -> None:
    names = ["old"]
    with FakeServer(lambda _body, _number: {"content": verdict(), "model": names[0]}) as server:
        list(judge(server, tmp_path).answers([question(1)]))
        names[0] = "new"
        for _ in range(3):
            found = {one.id: one.model for one in judge(server, tmp_path).answers([question(1), question(2)])}
            assert found == {"q1": "old", "q2": "new"}
        assert len(server.bodies) == 2


@pytest.mark.parametrize(
    "reply",
    [
        {"content": verdict(), "usage": None},
        {"stall": 5},
        {"drop": True},
        {"content": verdict(), "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}},
    ],
)
def test_what_a_server_does_not_account_for_counts_in_full(tmp_path: Path, reply: Reply) -> None:
    with FakeServer(lambda _body, _number: reply) as server:
        one = judge(server, tmp_path, max_total_tokens=20_000, attempts=1, timeout_seconds=0.3)
        list(one.answers(map(question, range(40))))
        assert 1 <= len(server.bodies) < 20
    assert 10_000 < one.spending.tokens <= 20_000


def test_replies_of_another_version_of_the_model_are_not_mixed_in(tmp_path: Path) -> None:
    names = ["old"]
    with FakeServer(lambda _body, _number: {"content": verdict(), "model": names[0]}) as server:
        list(judge(server, tmp_path).answers([question(1)]))
        names[0] = "new"
        (answer,) = judge(server, tmp_path, expect="new").answers([question(1)])
        assert (answer.model, answer.stored, len(server.bodies)) == ("new", False, 2)
        (answer,) = judge(server, tmp_path, expect="new").answers([question(1)])
        assert (answer.model, answer.stored, len(server.bodies)) == ("new", True, 2)


def test_a_cap_on_calls_stops_cleanly_and_can_be_resumed(tmp_path: Path) -> None:
    with FakeServer(good) as server:
        answers = list(judge(server, tmp_path, max_calls=5).answers(map(question, range(12))))
        assert Counter(one.status for one in answers) == {"ok": 5, "over_budget": 7}
        assert len(server.bodies) == 5
        rest = list(judge(server, tmp_path, max_calls=50).answers(map(question, range(12))))
        assert Counter(one.status for one in rest) == {"ok": 12}
        assert len(server.bodies) == 12


@pytest.mark.parametrize("cap", [{"max_total_tokens": 9_000}, {"max_cost": 0.002}])
def test_caps_on_tokens_and_money_are_never_passed(tmp_path: Path, cap: dict[str, float]) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('[models."judge-1"]\ninput = 0.5\noutput = 1.0\n', encoding="utf-8")

    def dear(_body: dict[str, Any], _number: int) -> Reply:
        return {
            "content": verdict(),
            "stall": 0.02,
            "usage": {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000},
        }

    with FakeServer(dear) as server:
        one = judge(server, tmp_path, prices=prices, concurrency=8, **cap)
        answers = list(one.answers(map(question, range(40))))
    done = sum(answer.status == "ok" for answer in answers)
    assert {answer.status for answer in answers} == {"ok", "over_budget"}
    assert len(server.bodies) == done
    assert one.spending.tokens == 1000 * done <= cap.get("max_total_tokens", 10**9)
    assert one.spending.cost == pytest.approx(done * 5.5e-4)
    assert one.spending.cost <= cap.get("max_cost", 10**9)
    lines = one.ledger.entries()
    assert sum(line["dollars"] for line in lines) == pytest.approx(one.spending.cost)
    # A further call at its most would have passed the cap.
    most = bound(question(0).messages("0" * 16), 1024, load_prices(prices)["judge-1"])
    assert one.spending.tokens + most.tokens > cap.get("max_total_tokens", 0) or "max_cost" in cap


def test_a_cap_in_money_needs_a_price(tmp_path: Path) -> None:
    with FakeServer(good) as server, pytest.raises(UserError, match="no price of 'judge-1'"):
        judge(server, tmp_path, max_cost=1.0)


def test_two_thousand_judgements_with_faults_are_all_accounted_for(tmp_path: Path) -> None:
    """10 % of the calls fail in some way; answers come out of order."""

    def behave(_body: dict[str, Any], number: int) -> Reply:
        faults: list[Reply] = [
            {"status": 500},
            {"status": 429, "headers": {"retry-after": "0.01"}},
            {"drop": True},
            {"content": "no verdict"},
            {"content": None, "refusal": "no"},
        ]
        if number % 10 == 0:
            return faults[number // 10 % len(faults)]
        return {"content": verdict(number % 5 + 1), "stall": (number * 7919 % 13) / 1000}

    with FakeServer(behave) as server:
        answers = list(judge(server, tmp_path, concurrency=64).answers(map(question, range(2000))))
        assert server.most_at_once <= 64
    assert sorted(one.id for one in answers) == sorted(f"q{n}" for n in range(2000))
    assert [one.id for one in answers] != [f"q{n}" for n in range(2000)]
    counts = Counter(one.status for one in answers)
    unscored = sum(
        reply in ("no verdict", None)
        for reply in (behave({}, number).get("content", "-") for number in range(1, len(server.bodies) + 1))
    )
    assert counts["ok"] == 2000 - unscored
    assert counts["parse_failed"] + counts["refused"] == unscored > 50
    asked = Counter(number_of(body) for body in server.bodies)
    assert sum(asked.values()) - 2000 == sum(
        "status" in behave({}, number) or "drop" in behave({}, number)
        for number in range(1, len(server.bodies) + 1)
    )


CHILD = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from test_judge_openai import question
from latentbench_judges.openai_judge import OpenAIJudge
options = {"url": sys.argv[1], "cache": Path(sys.argv[2]) / "r.sqlite", "ledger": Path(sys.argv[2]) / "l.jsonl"}
for answer in OpenAIJudge.make("judge-1", options).answers(map(question, range(200))):
    print(answer.id, answer.status, answer.stored, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
def test_after_kill_9_only_what_is_missing_is_asked(tmp_path: Path) -> None:
    def behave(_body: dict[str, Any], _number: int) -> Reply:
        return {"content": verdict(), "stall": 0.05}

    with FakeServer(behave) as server:
        command = [sys.executable, "-c", CHILD, server.url, str(tmp_path), str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            answered = [child.stdout.readline().split()[0] for _ in range(60)]
            os.kill(child.pid, signal.SIGKILL)
            answered += [line.split()[0] for line in child.stdout if line.endswith("\n")]
        before = {f"q{number_of(body)}" for body in server.bodies}
        first = len(server.bodies)
        second = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
        asked = [f"q{number_of(body)}" for body in server.bodies[first:]]
    stored = {line.split()[0] for line in second if line.endswith("True")}
    assert len(second) == 200
    assert set(answered) <= stored <= before
    assert sorted(asked) == sorted({f"q{n}" for n in range(200)} - stored)


def test_a_dead_server_is_given_up(tmp_path: Path) -> None:
    with FakeServer(lambda _body, _number: {"status": 503}) as server:
        answers = list(judge(server, tmp_path, attempts=1, concurrency=4).answers(map(question, range(200))))
        assert len(server.bodies) < 40
    assert {one.status for one in answers} == {"transport_error"}
    assert sum("not asked" in (one.reason or "") for one in answers) > 150


def test_the_consumer_may_stop_early(tmp_path: Path) -> None:
    with FakeServer(lambda _body, _number: {"content": verdict(), "stall": 0.02}) as server:
        stream = judge(server, tmp_path, concurrency=4).answers(map(question, range(1000)))
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert len(server.bodies) < 100
    assert not any(thread.name == "judge" for thread in threading.enumerate())


def test_the_pace_starts_slowly_and_backs_off() -> None:
    async def scenario() -> None:
        now = [0.0]
        pace = Pace(64, clock=lambda: now[0])
        assert pace.limit == 4
        for _ in range(100):
            async with pace.slot():
                pass
            await pace.succeeded()
        assert pace.limit == 64
        for _ in range(10):
            pace.throttled(None)  # answers to calls that were under way together
        assert pace.limit == pytest.approx(44.8)
        now[0] += 3
        pace.throttled(None)
        assert pace.limit == pytest.approx(31.36)
        await pace.succeeded()
        assert 31.36 < pace.limit < 31.5

    run_alone(scenario())


def test_ratings_are_asked_for_with_their_schema_and_read(tmp_path: Path) -> None:
    tokens = ("The", " old", "\n", " Thames")
    asked = Question(
        "s", load_rubric("simulation"), {"explanation": "rivers", "text": "".join(tokens), "tokens": tokens}
    )

    def behave(_body: dict[str, Any], number: int) -> Reply:
        rows = [{"n": place, "value": 0 if place < 4 else 9} for place in range(1, 4 + (number > 1))]
        return {"content": json.dumps({"reasons": "Thames", "activations": rows})}

    with FakeServer(behave) as server:
        (short,) = judge(server, tmp_path).answers([asked])
        (answer,) = judge(server, tmp_path).answers([asked])
        (stored,) = judge(server, tmp_path).answers([asked])
    assert (short.status, short.verdict) == ("parse_failed", None)
    assert short.reason == "JSON of another form: 3 verdicts for 4 items"
    assert (answer.status, answer.verdict) == ("ok", [0, 0, 0, 9])
    assert (stored.verdict, stored.stored) == ([0, 0, 0, 9], True)
    assert len(server.bodies) == 2
    sent = server.bodies[0]["response_format"]["json_schema"]
    assert sent == {"name": "simulation", "strict": True, "schema": asked.rubric.schema_}
    assert "1. The\n2. old\n3. ⟨line break⟩\n4. Thames\n" in server.bodies[0]["messages"][1]["content"]


def test_a_question_that_waits_for_its_next_try_takes_no_slot(tmp_path: Path) -> None:
    """One call at once: the second question is answered while the first waits as long as the server asked."""

    def behave(body: dict[str, Any], number: int) -> Reply:
        if number == 1:
            return {"status": 503, "headers": {"retry-after": "1"}}
        return {"content": verdict(number_of(body))}

    async def both(one: OpenAIJudge) -> list[float]:
        transport, ended = Transport(one.options, one.key, None, one.spending), []

        async def ask(number: int) -> None:
            asked = question(number)
            await transport.ask({"model": "judge-1", "messages": asked.plain_messages}, lambda *_: None)
            ended.append(time.monotonic())

        first = asyncio.create_task(ask(1))
        while not server.bodies:
            await asyncio.sleep(0.01)
        await asyncio.gather(first, ask(2))
        await transport.close()
        return ended

    with FakeServer(behave) as server:
        ended = run_alone(both(judge(server, tmp_path, concurrency=1)))
    assert [number_of(body) for body in server.bodies] == [1, 2, 1]
    assert ended[1] - ended[0] >= 0.5
    assert server.most_at_once == 1


def test_a_pause_takes_no_slot_and_holds_back_who_waited_for_one() -> None:
    async def scenario() -> list[str]:
        pace, seen = Pace(1), []

        async def call(name: str) -> None:
            async with pace.slot():
                seen.append(name)

        async with pace.slot():
            waiting = asyncio.create_task(call("after the pause"))
            await asyncio.sleep(0)  # it waits for room now, beyond the look at pauses
            pace.throttled(0.3)
        started = time.monotonic()
        await asyncio.sleep(0.1)
        assert seen == []  # room is free, and the server asked for quiet
        await waiting
        assert time.monotonic() - started >= 0.25
        return seen

    assert run_alone(scenario()) == ["after the pause"]


def test_minute_limits_hold_calls_back(tmp_path: Path) -> None:
    with FakeServer(good) as server:
        started = time.monotonic()
        answers = list(judge(server, tmp_path, requests_per_minute=30.0).answers(map(question, range(31))))
        assert len(answers) == 31
        assert time.monotonic() - started >= 1.5  # 30 at once, the next after two seconds


def test_calls_at_their_most_wait_for_those_under_way() -> None:
    spending = Spending(None, 100, None)
    most = bound([{"content": "x" * 14}], 30, None)
    assert most.tokens == 60
    assert spending.reserve(most) is None
    assert spending.reserve(most) == "the cap of 100 tokens is reached (0 spent)"
    assert spending.under_way
    spending.settle(most, Bound(0, 0.0))
    assert spending.reserve(most) is None
