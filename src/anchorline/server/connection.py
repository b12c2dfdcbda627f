"""One client's connection: how long it may stay unfinished, and how many there may be.

uvicorn closes a connection that rests after a reply. One that has begun a request and does not end
it, or never begins one, would stay for ever; here it is closed when its time is over, or earlier
when a new client needs its place.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from anchorline.api.errors import ApiError
from anchorline.limits import Limits
from anchorline.server.responses import error_response

logger = logging.getLogger("anchorline.server")

LINGER_SECONDS = 5.0
"""How long the rest of a request is still read, and dropped, after its answer: closing at once could
take the answer away from a client that is still sending."""

REFUSALS = 32
"""Connections beyond the limit that are told so; any more are cut."""

REFUSAL_SECONDS = 2.0


class Connection(H11Protocol):
    """uvicorn's connection with deadlines and a limit; ``protocol_class`` makes one for given limits."""

    limits: ClassVar[Limits]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_since = self.loop.time()
        self._refused = False
        seconds = self.limits.request_seconds
        if not self._finds_room(self.limits.connections):
            self._refused = True
            self.app = _refuse
            seconds = min(seconds, REFUSAL_SECONDS)
            if not self._finds_room(REFUSALS):
                self.cut()
                return
        self._give(seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._take_back()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:  # a part of a head
            self._give(self.limits.request_seconds)
        elif not self.cycle.response_complete:
            self._take_back()

    def pause_writing(self) -> None:
        self._waiting_since = self.loop.time()
        super().pause_writing()

    def on_response_complete(self) -> None:
        self._waiting_since = self.loop.time()
        super().on_response_complete()
        if not self.transport.is_closing() and self.conn.their_state is h11.SEND_BODY:
            self._give(LINGER_SECONDS)

    @property
    def unfinished(self) -> bool:
        """Whether the client is to act: it has sent no request, a part of one, rests after a reply, or takes none."""
        if self.cycle is None or self.cycle.response_complete or self.flow.write_paused:
            return True
        return self.conn.their_state is h11.SEND_BODY

    def cut(self) -> None:
        """Close at once; what was not yet sent is lost."""
        self.transport.abort()
        self.connections.discard(self)  # now, so that the next one to come counts right

    def _finds_room(self, limit: int) -> bool:
        """Whether this is within the limit of its kind; else the one that waited longest for its client is cut."""
        alike = [other for other in self.connections if isinstance(other, Connection)]
        alike = [other for other in alike if other._refused == self._refused]
        if len(alike) <= limit:
            return True
        waiting = [other for other in alike if other.unfinished and other is not self]
        if not waiting:
            return False
        min(waiting, key=lambda other: other._waiting_since).cut()
        return True

    def _give(self, seconds: float) -> None:
        """Start the time for what is missing, unless it runs already: more bytes do not prolong it."""
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._on_time_over)

    def _take_back(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time_over(self) -> None:
        self.transport.close()


def protocol_class(limits: Limits) -> type[Connection]:
    """The class of one server's connections, which uvicorn makes without arguments of ours."""
    return type("Connection", (Connection,), {"limits": limits})


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = ApiError(
        status=503,
        message="too many connections are open (--max-connections)",
        type="server_error",
        code="too_many_connections",
        headers={"connection": "close", "retry-after": "1"},
    )
    await error_response(error, scope)(scope, receive, send)


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's handler of what nobody caught; to be out of file descriptors is worth a line, not a traceback."""
    error = context.get("exception")
    if isinstance(error, OSError) and "accept" in context["message"]:
        logger.warning("no new connections for a second: %s", error.strerror)
        return
    loop.default_exception_handler(context)
