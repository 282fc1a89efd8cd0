"""A small OpenAI-like server on loopback for tests: real HTTP, in a thread, answering as a test tells it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from fake_batches import FakeBatches

Reply = dict[str, Any]
"""Any of `content`, `finish`, `refusal`, `model`, `usage`; `status`, `headers`, `error`; `drop`, `stall`, `body`."""


@dataclass
class FakeServer:
    """Answers every chat completion by `behave(body, number)`, number counting from 1."""

    behave: Callable[[dict[str, Any], int], Reply]
    models: list[str] | None = field(default_factory=lambda: ["judge-1"])
    """What GET /models lists; None: there is no such page."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: Counter[str] = field(default_factory=Counter)
    most_at_once: int = 0
    batches: FakeBatches | None = None
    """None: there are no such pages."""

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()

        def main() -> None:
            asyncio.set_event_loop(self._loop)
            self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
            self.port = self._server.sockets[0].getsockname()[1]
            ready.set()
            self._loop.run_forever()
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            self._loop.close()

        self._thread = threading.Thread(target=main, daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @classmethod
    def with_batches(cls, behave: Callable[[dict[str, Any], int], Reply], **options: Any) -> Self:
        """A server that answers the lines of batches by `behave`, too."""
        made = cls(behave)

        def answer(body: dict[str, Any]) -> tuple[Reply, dict[str, Any]]:
            reply = made.behave(body, 0)
            return reply, made._completion(body, reply)

        made.batches = FakeBatches(answer, **options)
        return made

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        payload = await reader.readexactly(int(headers.get("content-length", "0")))
        self.keys[headers.get("authorization", "")] += 1
        method, path, _ = first.split(" ")
        if path.startswith(("/v1/files", "/v1/batches")):
            missing = (404, b'{"error": {"message": "no such page"}}')
            answered = self.batches.request(method, path, headers, payload) if self.batches else missing
            return await self._send(writer, *answered, {})
        if first.startswith("GET"):
            return await self._models(writer)
        body = json.loads(payload)
        self.bodies.append(body)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            reply = self.behave(body, len(self.bodies))
            await asyncio.sleep(reply.get("stall", 0))
        finally:
            self._running -= 1
        if reply.get("drop"):
            return False
        if "body" in reply:
            return await self._send(writer, 200, reply["body"].encode(), {})
        if "status" in reply:
            error = {"error": {"message": reply.get("error", "no"), "code": reply.get("code")}}
            return await self._send(
                writer, reply["status"], json.dumps(error).encode(), reply.get("headers", {})
            )
        return await self._send(writer, 200, json.dumps(self._completion(body, reply)).encode(), {})

    def _completion(self, body: dict[str, Any], reply: Reply) -> dict[str, Any]:
        message = {"role": "assistant", "content": reply.get("content"), "refusal": reply.get("refusal")}
        usage = reply.get("usage", {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110})
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": reply.get("model", body["model"]),
            "choices": [{"index": 0, "message": message, "finish_reason": reply.get("finish", "stop")}],
            "usage": usage,
        }

    async def _models(self, writer: asyncio.StreamWriter) -> bool:
        if self.models is None:
            return await self._send(writer, 404, b'{"error": {"message": "no such page"}}', {})
        listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
        return await self._send(writer, 200, json.dumps(listed).encode(), {})

    async def _send(
        self, writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str]
    ) -> bool:
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return True
