"""Batches against a real HTTP server: collected whole or in part, once, whoever is killed in between."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fake_batches import COURSE
from fake_server import FakeServer, Reply
from test_judge_openai import SECRET, good, judge, number_of, question, verdict

from latentbench.cli._main import _run
from latentbench.errors import UserError
from latentbench_judges import _batch
from latentbench_judges._batch_store import BatchStore, Line, store_path
from latentbench_judges._spending import load_prices


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATENTBENCH_JUDGE_KEY", SECRET)


def batching(server: FakeServer, folder: Path, **options: Any) -> Any:
    return judge(server, folder, **{"batch": True, "batch_poll_s": 0.01, "attempts": 2, **options})


def waiting(folder: Path) -> int:
    """Questions that wait in a file of batches."""
    with BatchStore(store_path(folder / "replies.sqlite")) as store:
        return sum(one.waiting for one in store.batches())


def test_a_batch_goes_up_and_comes_back(tmp_path: Path) -> None:
    with FakeServer.with_batches(good) as server:
        one = batching(server, tmp_path)
        one.preflight()
        answers = list(one.answers([*map(question, range(5)), dataclasses.replace(question(3), id="again")]))
        assert server.batches is not None
        (made,) = server.batches.batches
        lines = server.batches.lines(made)
        assert server.bodies == []  # nothing was asked live
        assert len(server.batches.looks) == 3
        assert server.keys.keys() == {f"Bearer {SECRET}"}
    assert sorted(one.id for one in answers) == ["again", *(f"q{n}" for n in range(5))]
    assert {(one.status, one.verdict, one.path, one.model) for one in answers} == {
        ("ok", 4, "strict", "judge-1")
    }
    assert sum(one.usage.prompt for one in answers) == 500
    assert len({line["custom_id"] for line in lines}) == len(lines) == 5
    assert all(len(line["custom_id"]) == 64 for line in lines)
    assert {(line["method"], line["url"]) for line in lines} == {("POST", "/v1/chat/completions")}
    assert lines[0]["body"]["response_format"]["json_schema"]["strict"] is True
    assert (lines[0]["body"]["seed"], lines[0]["body"]["max_tokens"]) == (0, 1024)
    assert waiting(tmp_path) == 0
    entries = one.ledger.entries()
    assert [(entry["outcome"], entry["batch"], entry["prompt"]) for entry in entries] == [
        ("answered", "batch_0", 100)
    ] * 5
    assert (one.spending.calls, one.spending.tokens, one.spending.under_way) == (5, 550, False)


def test_batches_and_live_calls_share_cache_and_identity(tmp_path: Path) -> None:
    with FakeServer.with_batches(good) as server:
        assert server.batches is not None
        live, slow = judge(server, tmp_path), batching(server, tmp_path)
        assert live.identity() == slow.identity()
        list(live.answers(map(question, range(3))))
        found = {one.id: one.stored for one in slow.answers(map(question, range(6)))}
        assert found == {f"q{n}": n < 3 for n in range(6)}
        assert len(server.batches.asked()) == 3
        assert all(one.stored for one in live.answers(map(question, range(6))))
        assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("reply", "status", "reason", "outcome"),
    [
        ({"content": "no verdict"}, "parse_failed", "no verdict", "answered"),
        ({"content": "\u2028 \x0b no verdict"}, "parse_failed", "no verdict", "answered"),
        ({"content": None, "refusal": "I will not"}, "refused", "I will not", "answered"),
        ({"content": verdict()[:20], "finish": "length"}, "truncated", "max_tokens", "answered"),
        ({"content": "", "finish": "content_filter"}, "filtered", "filter", "answered"),
        ({"status": 500, "error": "oh"}, "transport_error", "status 500: oh", "failed"),
        ({"status": 400, "error": "response_format"}, "transport_error", "schema_mode=prompt", "failed"),
        ({"status": 401, "error": f"key {SECRET}"}, "transport_error", "key [key]; check the key", "failed"),
        ({"expired": True}, "transport_error", "batch_expired: too late", "failed"),
        ({"lost": True}, "transport_error", "batch_0 is completed, and has no answer", "failed"),
    ],
)
def test_every_fault_of_a_line_has_its_status_and_is_asked_again(
    tmp_path: Path, reply: Reply, status: str, reason: str, outcome: str
) -> None:
    replies = [reply]

    def behave(body: dict[str, Any], _number: int) -> Reply:
        return good(body, 0) if number_of(body) else replies[-1]

    with FakeServer.with_batches(behave) as server:
        one = batching(server, tmp_path)
        found = {answer.id: answer for answer in one.answers(map(question, range(3)))}
        assert Counter(answer.status for answer in found.values()) == {"ok": 2, status: 1}
        assert (found["q0"].status, found["q0"].verdict) == (status, None)
        assert reason in (found["q0"].reason or "")
        assert Counter(entry["outcome"] for entry in one.ledger.entries())[outcome] == (
            3 if outcome == "answered" else 1
        )
        assert one.spending.tokens == (330 if outcome == "answered" else 220)
        replies.append(good({}, 0))
        again = list(batching(server, tmp_path).answers(map(question, range(3))))
        assert [answer.status for answer in again] == ["ok"] * 3
        assert server.batches is not None
        assert len(server.batches.asked()) == 4
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert SECRET not in written.decode("latin-1")


def test_a_line_that_comes_twice_counts_once(tmp_path: Path) -> None:
    with FakeServer.with_batches(lambda _body, _number: {"content": verdict(), "twice": True}) as server:
        one = batching(server, tmp_path)
        assert len(list(one.answers(map(question, range(4))))) == 4
    assert len(one.ledger.entries()) == 4


@pytest.mark.parametrize("end", ["expired", "cancelled", "completed"])
def test_what_a_batch_finished_is_kept_and_the_rest_is_asked_again(tmp_path: Path, end: str) -> None:
    def half(body: dict[str, Any], _number: int) -> Reply:
        return good(body, 0) if number_of(body) % 2 else {"lost": True}

    with FakeServer.with_batches(half, course=("validating", "in_progress", end)) as server:
        found = {one.id: one for one in batching(server, tmp_path).answers(map(question, range(6)))}
        assert {name for name, one in found.items() if one.status == "ok"} == {"q1", "q3", "q5"}
        assert all(one.status in ("ok", "transport_error") for one in found.values())
        assert f"is {end}" in (found["q0"].reason or "")
        server.behave = good
        again = {one.id: one.stored for one in batching(server, tmp_path).answers(map(question, range(6)))}
        assert again == {f"q{n}": n % 2 == 1 for n in range(6)}


def test_a_failed_batch_says_why_and_is_asked_again(tmp_path: Path) -> None:
    with FakeServer.with_batches(good, course=("validating", "failed")) as server:
        assert server.batches is not None
        server.batches.errors = [{"code": "x", "line": 1, "message": f"quota of {SECRET} used up"}]
        one = batching(server, tmp_path)
        (answer,) = one.answers([question(1)])
        assert answer.status == "transport_error"
        assert (
            answer.reason
            == "batch batch_0 is failed, and has no answer to this question: quota of [key] used up"
        )
        assert one.spending.tokens == 0
        server.batches.course = COURSE
        (answer,) = batching(server, tmp_path).answers([question(1)])
        assert answer.status == "ok"


def test_another_model_than_expected_stops_the_run_and_is_not_kept(tmp_path: Path) -> None:
    names = ["judge-1-new"]
    with FakeServer.with_batches(lambda _b, _n: {"content": verdict(), "model": names[-1]}) as server:
        with pytest.raises(UserError, match="answers as 'judge-1-new'"):
            list(batching(server, tmp_path, expect="judge-1").answers(map(question, range(3))))
        assert waiting(tmp_path) == 0
        names.append("judge-1")
        answers = list(batching(server, tmp_path, expect="judge-1").answers(map(question, range(3))))
        assert [one.stored for one in answers] == [False] * 3


@pytest.mark.parametrize("cap", [{"batch_requests": 4}, {"batch_bytes": 14_000}, {"batch_bytes": 1}])
def test_batches_are_split(tmp_path: Path, cap: dict[str, int]) -> None:
    with FakeServer.with_batches(good) as server:
        answers = list(batching(server, tmp_path, **cap).answers(map(question, range(10))))
        assert server.batches is not None
        sizes = [len(server.batches.lines(one)) for one in server.batches.batches]
        files = [len(server.batches.files[one["input_file_id"]]) for one in server.batches.batches]
        assert len(set(server.batches.asked())) == len(server.batches.asked()) == 10
    assert Counter(one.status for one in answers) == {"ok": 10}
    if "batch_requests" in cap:
        assert sizes == [4, 4, 2]
    else:
        assert len(sizes) > 1
        assert all(size == 1 or file <= cap["batch_bytes"] for size, file in zip(sizes, files, strict=True))


def test_caps_are_kept_when_a_batch_is_sent(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('[models."judge-1"]\ninput = 0.5\noutput = 1.0\nbatch = 0.5\n', encoding="utf-8")
    with FakeServer.with_batches(good) as server:
        one = batching(server, tmp_path, prices=prices, max_calls=2)
        assert Counter(answer.status for answer in one.answers(map(question, range(5)))) == {
            "ok": 2,
            "over_budget": 3,
        }
        # 100 tokens read and 10 written, at half the price
        assert one.spending.cost == pytest.approx(2 * 3e-5)
        assert [entry["dollars"] for entry in one.ledger.entries()] == [3e-5] * 2
        room = []
        for share in (0.5, None):  # None: the price of a batch is not known, and the full one counts
            line = f"batch = {share}\n" if share else ""
            prices.write_text(f'[models."judge-1"]\ninput = 0.5\noutput = 1.0\n{line}', encoding="utf-8")
            two = batching(server, tmp_path / str(share), prices=prices, max_cost=0.01)
            found = Counter(answer.status for answer in two.answers(map(question, range(30))))
            assert set(found) == {"ok", "over_budget"}
            assert two.spending.cost == pytest.approx(found["ok"] * 6e-5 * (share or 1))
            room.append(found["ok"])
        assert server.batches is not None
        assert len(server.batches.asked()) == 2 + sum(room)
        assert room[0] in (2 * room[1], 2 * room[1] + 1)


def test_a_price_says_what_a_batch_costs() -> None:
    price = load_prices()["gpt-4o-mini"]
    assert price.batch_source is not None
    assert (price.in_batches().input, price.in_batches().output) == (0.075, 0.3)
    unknown = price.model_copy(update={"batch": None})
    assert unknown.in_batches().input == price.input


def test_without_waiting_the_next_run_collects(tmp_path: Path) -> None:
    with FakeServer.with_batches(good) as server:
        one = batching(server, tmp_path, batch_wait_s=0)
        first = [*one.answers(map(question, range(3))), *one.answers(map(question, range(2, 5)))]
        assert Counter(answer.status for answer in first) == {"missing": 6}
        assert any("batch_0 (in_progress): not back yet" in (answer.reason or "") for answer in first)
        assert one.spending.under_way
        assert server.batches is not None
        assert len(server.batches.asked()) == 5  # q2 was under way already
        assert waiting(tmp_path) == 5
        two = batching(server, tmp_path, max_calls=5)
        answers = list(two.answers(map(question, range(6))))
        # Those under way count in the new run, too: there is no room for a sixth.
        assert Counter(answer.status for answer in answers) == {"ok": 5, "over_budget": 1}
        assert len(server.batches.asked()) == 5
        assert waiting(tmp_path) == 0
        assert (two.spending.calls, two.spending.tokens) == (5, 550)


CHILD = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from test_judge_batch import batching, question
from latentbench_judges.openai_judge import OpenAIJudge
folder = Path(sys.argv[2])
options = {"url": sys.argv[1], "cache": folder / "replies.sqlite", "ledger": folder / "ledger.jsonl", "batch": True,
           "batch_poll_s": 0.05}
for answer in OpenAIJudge.make("judge-1", options).answers(map(question, range(50))):
    print(answer.id, answer.status, flush=True)
"""


def until(ready: Any) -> None:
    for _ in range(600):
        if ready():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen within 30 seconds")


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
@pytest.mark.parametrize("moment", ["polling", "upload", "create"])
def test_after_kill_9_the_same_batch_is_collected(tmp_path: Path, moment: str) -> None:
    stuck: list[str] = []

    def refuse(method: str, path: str) -> int | None:
        """Keeps the child from going on at the moment at which it is killed."""
        if moment == "upload" and method == "POST" and path.endswith("batches") and not stuck:
            return 503
        return None

    with FakeServer.with_batches(good, course=("in_progress",), refuse=refuse) as server:
        assert server.batches is not None
        server.batches.lose_create = 1000 if moment == "create" else 0
        command = [sys.executable, "-c", CHILD, server.url, str(tmp_path), str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            batches = server.batches
            if moment == "polling":
                until(lambda: len(batches.looks) >= 3)
            elif moment == "upload":
                until(lambda: batches.files)
            else:
                until(lambda: batches.batches)
            os.kill(child.pid, signal.SIGKILL)
        stuck.append("no longer")
        server.batches.lose_create = 0
        server.batches.course = ("in_progress", "completed")
        second = subprocess.run(command, capture_output=True, text=True, check=True)
        assert Counter(line.split()[1] for line in second.stdout.splitlines()) == {"ok": 50}
        assert len(server.batches.batches) == 1
        assert len(server.batches.asked()) == 50
    assert waiting(tmp_path) == 0
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 50


def test_a_submission_cut_off_is_found_by_its_token_or_not_at_all(tmp_path: Path) -> None:
    with FakeServer.with_batches(good) as server:
        assert server.batches is not None
        one = batching(server, tmp_path, batch_wait_s=0)
        for n in range(4):  # more than a page of the list
            list(one.answers([question(n)]))
        path = store_path(tmp_path / "replies.sqlite")
        with BatchStore(path) as store:
            first = store.batches()[0]
            store._connection.execute(
                "UPDATE batches SET id = NULL, file = NULL WHERE token = ?", (first.token,)
            )
            store._connection.commit()
            other = one._held.keys()
            assert len(other) == 4
        answers = list(batching(server, tmp_path).answers(map(question, range(4))))
        assert Counter(answer.status for answer in answers) == {"ok": 4}
        assert len(server.batches.batches) == 4
        with BatchStore(path) as store:
            key = batching(server, tmp_path)
            assert store.batches() == []
            from latentbench_judges._exchange import Exchange

            custom = Exchange(key.options, key.identity(), None).key(question(9))
            store.prepare("never sent", server.url, "judge-1", [Line(custom, "monosemanticity", 10, 0.0)])
        (answer,) = batching(server, tmp_path).answers([question(9)])
        assert answer.status == "ok"
        assert len(server.batches.batches) == 5


def test_a_lost_reply_to_a_submission_makes_no_second_batch(tmp_path: Path) -> None:
    with FakeServer.with_batches(good) as server:
        assert server.batches is not None
        server.batches.lose_create = 1
        answers = list(batching(server, tmp_path).answers(map(question, range(3))))
        assert Counter(one.status for one in answers) == {"ok": 3}
        assert len(server.batches.batches) == 1


def test_if_nobody_knows_whether_it_was_sent_the_next_run_finds_out(tmp_path: Path) -> None:
    down: list[int] = []

    def refuse(method: str, path: str) -> int | None:
        return 503 if down and method == "GET" and "/batches" in path else None

    with FakeServer.with_batches(good, refuse=refuse) as server:
        assert server.batches is not None
        server.batches.lose_create = 2
        down.append(1)
        one = batching(server, tmp_path)
        answers = list(one.answers(map(question, range(3))))
        assert {(answer.status, answer.id) for answer in answers} == {
            ("transport_error", f"q{n}") for n in range(3)
        }
        assert "not known" in (answers[0].reason or "")
        assert not one.spending.under_way
        assert one.spending.tokens > 3 * 1024  # what may be charged counts
        down.clear()
        server.batches.lose_create = 0
        answers = list(batching(server, tmp_path).answers(map(question, range(3))))
        assert Counter(answer.status for answer in answers) == {"ok": 3}
        assert len(server.batches.batches) == 1


def test_a_server_that_takes_no_file_costs_nothing(tmp_path: Path) -> None:
    def refuse(method: str, path: str) -> int | None:
        return 503 if path == "/v1/files" else None

    with FakeServer.with_batches(good, refuse=refuse) as server:
        one = batching(server, tmp_path, batch_requests=2)
        answers = list(one.answers(map(question, range(6))))
        assert [answer.status for answer in answers] == ["transport_error"] * 6
        assert "not sent: status 503" in (answers[0].reason or "")
        assert (one.spending.tokens, one.spending.under_way) == (0, False)
    assert waiting(tmp_path) == 0


def test_a_server_that_is_gone_is_given_up_and_the_batch_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_batch, "_GIVE_UP", 3)
    down = [1]

    def refuse(_method: str, path: str) -> int | None:
        return 503 if down and "/batches/" in path else None

    with FakeServer.with_batches(good, refuse=refuse) as server:
        (answer,) = batching(server, tmp_path).answers([question(1)])
        assert answer.status == "transport_error"
        assert "no answer to 3 polls; the same command collects it" in (answer.reason or "")
        down.clear()
        (answer,) = batching(server, tmp_path).answers([question(1)])
        assert answer.status == "ok"
        assert server.batches is not None
        assert len(server.batches.batches) == 1


def test_a_server_without_batches_is_named_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(good) as server:
        with pytest.raises(UserError, match=r"has no batches \(GET /batches: status 404\): leave out"):
            batching(server, tmp_path).preflight()
        with pytest.raises(UserError, match=r"has no batches \(POST /files: status 404\)"):
            list(batching(server, tmp_path).answers([question(1)]))
        assert waiting(tmp_path) == 0
        command = ["judge", "calibrate", "openai:judge-1", "--judge-url", server.url]
        assert _run([*command, "--judge-option", "openai.batch=true"]) == 2
    assert "has no batches" in capsys.readouterr().err


def test_a_batch_that_the_server_lost_is_not_paid_for_twice_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer.with_batches(good) as server:
        assert server.batches is not None
        list(batching(server, tmp_path, batch_wait_s=0).answers([question(1)]))
        server.batches.batches.clear()
        with pytest.raises(UserError, match=r"does not know the batch batch_0 .* --forget batch_0"):
            list(batching(server, tmp_path).answers([question(1)]))
        cache = ["--cache", str(tmp_path / "replies.sqlite")]
        assert _run(["judge", "batches", *cache, "--forget", "batch_7"]) == 2
        assert "no batch 'batch_7'" in capsys.readouterr().err
        assert _run(["judge", "batches", *cache, "--forget", "batch_0"]) == 0
        (answer,) = batching(server, tmp_path).answers([question(1)])
        assert answer.status == "ok"


def test_the_command_lists_what_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ["--cache", str(tmp_path / "replies.sqlite")]
    assert _run(["judge", "batches", *cache]) == 0
    assert not (tmp_path / "replies-batches.sqlite").exists()
    capsys.readouterr()
    with FakeServer.with_batches(good) as server:
        list(batching(server, tmp_path, batch_wait_s=0).answers(map(question, range(3))))
        assert _run(["judge", "batches", *cache, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["batch"], row["state"], row["questions"], row["waiting"]) == (
            "batch_0",
            "validating",
            3,
            3,
        )
        assert (row["url"], row["model"]) == (server.url, "judge-1")
        assert 0 <= row["age_seconds"] < 100
        assert _run(["judge", "batches", *cache]) == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in ("batch_0", "validating", server.url))


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs behind them with it ignored
sys.path.insert(0, sys.argv[3])
from latentbench.cli import main
main(["judge", "calibrate", "openai:judge-1", "--judge-url", sys.argv[1], "--rubric", "monosemanticity",
      "--judge-option", "openai.batch=true", "--judge-option", f"openai.cache='{sys.argv[2]}/replies.sqlite'",
      "--judge-option", f"openai.ledger='{sys.argv[2]}/ledger.jsonl'", "--judge-option", "openai.batch_poll_s=0.05"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C as a signal")
def test_ctrl_c_says_what_goes_on(tmp_path: Path) -> None:
    with FakeServer.with_batches(good, course=("in_progress",)) as server:
        assert server.batches is not None
        command = [sys.executable, "-c", INTERRUPTED, server.url, str(tmp_path), str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            batches = server.batches
            until(lambda: len(batches.looks) >= 2)
            os.kill(child.pid, signal.SIGINT)
            try:
                _, said = child.communicate(timeout=60)
            finally:
                child.kill()  # else leaving the block waits for a child that did not stop
    assert child.returncode == 130
    assert "batch batch_0: sent" in said
    assert "interrupted: 1 batch goes on at" in said
    assert "the same command collects" in said
    assert "Traceback" not in said
