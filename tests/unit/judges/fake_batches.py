"""The batch endpoints of the server for tests: files and batches in memory, that go one state on with each look."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.parser import BytesParser
from typing import Any

Reply = dict[str, Any]
Answered = tuple[int, bytes]
"""Status and content."""

COURSE = ("validating", "in_progress", "finalizing", "completed")


@dataclass
class FakeBatches:
    """Batches whose lines are answered as `answer(body)` says, with `lost`, `expired` and `twice` besides.

    `course` is the states that a batch goes through, one for each look; the last one stays.
    `refuse` may answer a request in place of us: told method and path, it gives a status or None. `lose_create`: so
    many batches are made and their reply is an error.
    """

    answer: Callable[[dict[str, Any]], tuple[Reply, dict[str, Any]]]
    course: tuple[str, ...] = COURSE
    refuse: Callable[[str, str], int | None] = lambda _method, _path: None
    lose_create: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    batches: list[dict[str, Any]] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)

    def request(self, method: str, path: str, headers: Mapping[str, str], payload: bytes) -> Answered:
        refused = self.refuse(method, path)
        if refused is not None:
            return refused, b'{"error": {"message": "not this time"}}'
        page, _, query = path.partition("?")
        parts = page.removeprefix("/v1/").split("/")
        if method == "POST":
            made = self._upload(headers, payload) if parts == ["files"] else self._create(json.loads(payload))
            if parts == ["batches"] and self.lose_create:
                self.lose_create -= 1
                return 500, b'{"error": {"message": "oh"}}'
            return 200, json.dumps(made).encode()
        if parts == ["batches"]:
            return 200, json.dumps(
                self._list(dict(one.split("=") for one in query.split("&") if one))
            ).encode()
        return self._batch(parts[1]) if parts[0] == "batches" else self._content(parts[1])

    def _batch(self, identifier: str) -> Answered:
        self.looks.append(identifier)
        found = next((one for one in self.batches if one["id"] == identifier), None)
        if found is None:
            return 404, b'{"error": {"message": "no such batch"}}'
        return 200, json.dumps(self._step(found)).encode()

    def _content(self, identifier: str) -> Answered:
        content = self.files.get(identifier)
        return (404, b'{"error": {"message": "no such file"}}') if content is None else (200, content)

    def lines(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What was asked in a batch."""
        return [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]

    def asked(self) -> list[str]:
        """Custom ids of all batches, in the order they came."""
        return [line["custom_id"] for batch in self.batches for line in self.lines(batch)]

    def _upload(self, headers: Mapping[str, str], payload: bytes) -> dict[str, Any]:
        head = f"content-type: {headers['content-type']}\r\n\r\n".encode()
        form = BytesParser().parsebytes(head + payload)
        fields = {part.get_param("name", header="content-disposition"): part for part in form.get_payload()}  # type: ignore[union-attr]
        assert fields["purpose"].get_payload() == "batch"  # type: ignore[union-attr]
        content = fields["file"].get_payload(decode=True)  # type: ignore[union-attr]
        assert isinstance(content, bytes)
        identifier = f"file-{len(self.files)}"
        self.files[identifier] = content
        return {"id": identifier, "object": "file", "bytes": len(content), "purpose": "batch"}

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["endpoint"] == "/v1/chat/completions"
        assert body["completion_window"] == "24h"
        made = {
            "id": f"batch_{len(self.batches)}",
            "object": "batch",
            "endpoint": body["endpoint"],
            "completion_window": "24h",
            "input_file_id": body["input_file_id"],
            "metadata": body.get("metadata"),
            "created_at": int(time.time()),
            "status": self.course[0],
        }
        self.batches.append(made)
        return made

    def _list(self, query: Mapping[str, str]) -> dict[str, Any]:
        newest = self.batches[::-1]
        start = next((n + 1 for n, one in enumerate(newest) if one["id"] == query.get("after")), 0)
        page = newest[start : start + min(2, int(query["limit"]))]
        more = start + len(page) < len(newest)
        return {"object": "list", "data": page, "has_more": more}

    def _step(self, batch: dict[str, Any]) -> dict[str, Any]:
        place = self.course.index(batch["status"]) + 1
        batch["status"] = self.course[min(place, len(self.course) - 1)]
        if batch["status"] == "failed":
            batch["errors"] = {"object": "list", "data": self.errors}
        elif batch["status"] in ("completed", "expired", "cancelled") and "output_file_id" not in batch:
            self._finish(batch)
        return batch

    def _finish(self, batch: dict[str, Any]) -> None:
        """Answers in another order than they were asked, errors in a file of their own."""
        output: list[str] = []
        errors: list[str] = []
        for number, line in enumerate(reversed(self.lines(batch))):
            reply, completion = self.answer(line["body"])
            made: dict[str, Any] = {"id": f"r{number}", "custom_id": line["custom_id"], "error": None}
            if reply.get("lost"):
                continue
            if reply.get("expired"):
                made |= {"response": None, "error": {"code": "batch_expired", "message": "too late"}}
                errors.append(json.dumps(made))
                continue
            status = reply.get("status", 200)
            body = completion if status == 200 else {"error": {"message": reply.get("error", "no")}}
            made["response"] = {"status_code": status, "request_id": "x", "body": body}
            text = json.dumps(made, ensure_ascii=False)
            (output if status == 200 else errors).extend([text] * (2 if reply.get("twice") else 1))
        output += ["", "no json", '{"custom_id": "of another", "response": null}']
        for name, lines in (("output_file_id", output), ("error_file_id", errors)):
            identifier = f"file-{len(self.files)}"
            self.files[identifier] = "\n".join(lines).encode("utf-8", "replace")
            batch[name] = identifier if lines else None
