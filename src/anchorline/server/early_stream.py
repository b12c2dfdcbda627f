"""Streamed replies that begin before their model is loaded, so that no client gives up meanwhile.

Until then only comments are sent. What the model's endpoint says is then passed on without a second head; where that
fails, or the loading, the error is an event in the words of the protocol.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Message, Send

from anchorline.api import sse
from anchorline.api.messages_errors import speaks_messages

OK = 200


class EarlyStream:
    """``send`` of one reply; as good as the one it has been given while nothing was sent early."""

    def __init__(self, send: Send, *, path: str) -> None:
        self._send = send
        self._path = path
        self._fails = False
        self._error = b""
        self.begun = False

    async def ping(self) -> None:
        """Begin, unless that was done, and keep the connection open. Raises OSError when it is broken."""
        if not self.begun:
            self.begun = True
            headers = [(name.encode(), value.encode()) for name, value in sse.HEADERS.items()]
            await self._send({"type": "http.response.start", "status": OK, "headers": headers})
        await self._send({"type": "http.response.body", "body": sse.PING, "more_body": True})

    async def __call__(self, message: Message) -> None:
        if not self.begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._fails = message["status"] != OK
        elif not self._fails:
            await self._send(message)
        else:
            self._error += message.get("body", b"")
            if not message.get("more_body", False):
                await self.fail(self._error)

    async def fail(self, body: bytes) -> None:
        """End with an error, which would have had this body."""
        await self._send({"type": "http.response.body", "body": error_event(self._path, body), "more_body": False})


def error_event(path: str, body: bytes) -> bytes:
    """The body of an error of the protocol of ``path`` as the event that ends a stream."""
    told: dict[str, Any] = msgspec.json.decode(body)
    if speaks_messages(path):
        return sse.named_event("error", told)
    if path.endswith("/responses"):
        error = {name: told["error"].get(name) for name in ("code", "message", "param")}
        return sse.named_event("error", {"type": "error", **error, "sequence_number": 0})
    return b"data: " + body + b"\n\n"
