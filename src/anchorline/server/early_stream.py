"""Streamed replies that begin before their model is loaded, so that no client gives up meanwhile.

Until then only comments are sent. What the model's endpoint says is then passed on without a second head; where that
fails, or the loading, the error is an event in the words of the protocol.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Message, Scope, Send

from anchorline.api import sse
from anchorline.api.errors import ApiError
from anchorline.api.messages_errors import speaks_messages
from anchorline.server.responses import error_response

OK = 200


class EarlyStream:
    """``send`` of one reply; as good as the one it has been given while nothing was sent early."""

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send = send
        self._scope = scope
        self._error = b""
        self.begun = False
        self.takes_error = False
        """Whether an error has to be told by ``fail``: it has begun, and no reply of an endpoint has."""

    async def ping(self) -> None:
        """Begin, unless that was done, and keep the connection open. Raises OSError when it is broken."""
        if not self.begun:
            self.begun = self.takes_error = True
            headers = [(name.encode(), value.encode()) for name, value in sse.HEADERS.items()]
            await self._send({"type": "http.response.start", "status": OK, "headers": headers})
        await self._send({"type": "http.response.body", "body": sse.PING, "more_body": True})

    async def __call__(self, message: Message) -> None:
        if not self.begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self.takes_error = message["status"] != OK
        elif not self.takes_error:
            await self._send(message)
        else:
            self._error += message.get("body", b"")
            if not message.get("more_body", False):
                await self._end(self._error)

    async def fail(self, error: ApiError) -> None:
        """End with an error."""
        await self._end(bytes(error_response(error, self._scope).body))

    async def _end(self, body: bytes) -> None:
        """End with what would have been the body of an error; it is empty where the client has left."""
        self.takes_error = False
        event = error_event(self._scope["path"], body) if body else b""
        await self._send({"type": "http.response.body", "body": event, "more_body": False})


def error_event(path: str, body: bytes) -> bytes:
    """The body of an error of the protocol of ``path`` as the event that ends a stream."""
    told: dict[str, Any] = msgspec.json.decode(body)
    if speaks_messages(path):
        return sse.named_event("error", told)
    if path.endswith("/responses"):
        error = {name: told["error"].get(name) for name in ("code", "message", "param")}
        return sse.named_event("error", {"type": "error", **error, "sequence_number": 0})
    return b"data: " + body + b"\n\n"
