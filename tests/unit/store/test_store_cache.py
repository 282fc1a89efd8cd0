"""The response cache: exact keys, first answer stays, many writers, no pickle."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentbench.errors import StoreError
from latentbench.store import Difference, ResponseCache


def request(**changes: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.0} | changes


def test_replies_are_found_by_the_whole_request_only(tmp_path: Path) -> None:
    with ResponseCache(tmp_path / "deep" / "cache.sqlite") as cache:
        assert cache.get(request()) is None
        cache.put(request(), {"text": "Ω", "tokens": 3})
        assert cache.get(dict(reversed(request().items()))) == {"text": "Ω", "tokens": 3}
        for other in (request(temperature=0.5), request(model="n"), request(seed=1), request(messages=[])):
            assert cache.get(other) is None
        assert len(cache) == 1
    with ResponseCache(tmp_path / "deep" / "cache.sqlite") as again:
        assert again.get(request()) == {"text": "Ω", "tokens": 3}


def test_the_first_reply_stays(tmp_path: Path) -> None:
    with ResponseCache(tmp_path / "c") as cache:
        cache.put(request(), {"score": 1})
        cache.put(request(), {"score": 2})
        assert cache.get(request()) == {"score": 1}


@pytest.mark.parametrize("bad", [None, float("nan"), {"x": {1}}, b"bytes"])
def test_failures_and_non_json_are_not_cached(tmp_path: Path, bad: Any) -> None:
    with ResponseCache(tmp_path / "c") as cache:
        with pytest.raises(StoreError):
            cache.put(request(), bad)
        assert len(cache) == 0


def test_the_nearest_request_shows_what_differs(tmp_path: Path) -> None:
    with ResponseCache(tmp_path / "c") as cache:
        assert cache.nearest(request()) is None
        cache.put(request(model="n", temperature=1.0), "far")
        cache.put(request(temperature=0.7), "near")
        miss = cache.nearest(request())
        assert miss is not None
        assert miss.fields == [Difference("temperature", 0.0, 0.7)]


def test_vectors_come_back_exactly_and_in_order(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(1200, 5)).astype(np.float32)
    requests = [{"model": "e", "text": str(i)} for i in range(1200)]
    with ResponseCache(tmp_path / "c") as cache:
        cache.put_vectors(requests[:-1], vectors[:-1])
        cache.put_vectors(requests[:1], vectors[1:2])
        found = cache.get_vectors(requests[::-1])
        assert found[0] is None
        np.testing.assert_array_equal(np.stack([v for v in found[:0:-1] if v is not None]), vectors[:-1])
        assert cache.get_vectors([]) == []


def test_bad_vectors_are_refused(tmp_path: Path) -> None:
    with ResponseCache(tmp_path / "c") as cache:
        with pytest.raises(StoreError, match="NaN"):
            cache.put_vectors([1], [[0.0, float("nan")]])
        with pytest.raises(StoreError, match="one row each"):
            cache.put_vectors([1, 2], [[0.0]])


def test_threads_and_connections_share_one_file(tmp_path: Path) -> None:
    with ResponseCache(tmp_path / "c") as one, ResponseCache(tmp_path / "c") as two:

        def work(cache: ResponseCache, worker: int) -> None:
            for i in range(25):
                cache.put(request(seed=worker * 1000 + i), {"value": i})
                assert cache.get(request(seed=worker * 1000 + i)) == {"value": i}

        threads = [threading.Thread(target=work, args=((one, two)[w % 2], w)) for w in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(one) == len(two) == 150


def test_foreign_newer_and_closed_files_are_named(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"this is not a database, and long enough to be told apart from an empty one" * 20)
    with pytest.raises(StoreError, match="can't be opened as a response cache"):
        ResponseCache(foreign)
    with sqlite3.connect(tmp_path / "newer") as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(StoreError, match="cache format 9"):
        ResponseCache(tmp_path / "newer")
    cache = ResponseCache(tmp_path / "c")
    cache.close()
    cache.close()
    with pytest.raises(StoreError, match="is closed"):
        cache.get(request())
