"""One ASGI call by hand: the test decides when the client sends, reads and leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import ASGIApp, Message


class AsgiCall:
    """A POST whose sent messages can be watched while it runs."""

    def __init__(self, method: str, path: str, body: bytes | list[bytes], **headers: str) -> None:
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [
                (name.replace("_", "-").encode(), value.encode())
                for name, value in ({"host": "127.0.0.1"} | headers).items()
            ],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 80),
        }
        parts = [body] if isinstance(body, bytes) else body
        self._inbox: list[Message] = [
            {"type": "http.request", "body": part, "more_body": index < len(parts) - 1}
            for index, part in enumerate(parts)
        ]
        self.parts_read = 0
        self.sent: list[Message] = []
        self._sent_changed = asyncio.Condition()
        self._gone = asyncio.Event()

    @property
    def status(self) -> int | None:
        return next((message["status"] for message in self.sent if message["type"] == "http.response.start"), None)

    @property
    def body_parts(self) -> list[bytes]:
        return [message.get("body", b"") for message in self.sent if message["type"] == "http.response.body"]

    def leave(self) -> None:
        """The client closes the connection."""
        self._gone.set()

    async def wait_for_body(self, wanted: bytes) -> None:
        """Until ``wanted`` has been sent."""
        async with asyncio.timeout(30), self._sent_changed:
            await self._sent_changed.wait_for(lambda: wanted in b"".join(self.body_parts))

    @contextlib.asynccontextmanager
    async def running(self, app: ASGIApp) -> AsyncIterator[None]:
        """Run the call; leaving the block waits for its end."""
        task = asyncio.create_task(self._run(app))
        try:
            yield
            async with asyncio.timeout(30):
                await task
        finally:
            task.cancel()

    async def _run(self, app: ASGIApp) -> None:
        await app(self.scope, self.receive, self.send)

    async def receive(self) -> Message:
        if self._inbox:
            self.parts_read += 1
            return self._inbox.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        async with self._sent_changed:
            self.sent.append(message)
            self._sent_changed.notify_all()
