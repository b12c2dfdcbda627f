"""Events of one reply from the engine thread to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from anchorline.output.events import ReplyEvent, ReplyFailed, ReplyFinished


class EventBridge:
    """A queue with one writer (the engine thread) and one reader (a task of the event loop).

    It holds at most one reply, whose length the context bounds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[ReplyEvent] = deque()
        self._wake = asyncio.Event()
        self._scheduled = False
        self._last: ReplyFinished | ReplyFailed | None = None
        self._left: Callable[[ReplyFinished | ReplyFailed], None] | None = None
        self.disconnected = False
        """The client is gone; set on the event loop only."""
        self.ended = False
        """The reader has taken the last event."""

    def emit(self, event: ReplyEvent) -> None:
        """Take an event; called on the engine thread, never blocks or raises."""
        self._events.append(event)
        if isinstance(event, ReplyFinished | ReplyFailed):
            self._last = event
        if self._scheduled:  # the reader has not drained yet and will find this event too
            return
        self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._on_wake)
        except RuntimeError:  # the loop is closed: the server has stopped and nobody reads any more
            return

    def leave(self, then: Callable[[ReplyFinished | ReplyFailed], None]) -> None:
        """Read no more; ``then`` gets the last event on the event loop, now if it has come, else when it comes."""
        if self._last is not None:
            then(self._last)
        else:
            self._left = then

    def disconnect(self) -> None:
        """Wake the reader because the client is gone; called on the event loop."""
        self.disconnected = True
        self._wake.set()

    async def take(self, *, timeout_seconds: float | None = None) -> list[ReplyEvent]:
        """The events that have come, at least one; empty after ``timeout_seconds`` or a disconnect."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self._events and not self.disconnected:
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            return []
        taken: list[ReplyEvent] = []
        while self._events:
            taken.append(self._events.popleft())
        if taken and isinstance(taken[-1], ReplyFinished | ReplyFailed):
            self.ended = True
        return taken

    def _on_wake(self) -> None:
        self._scheduled = False  # before the reader drains, so that later events wake it again
        if self._left is not None and self._last is not None:
            then, self._left = self._left, None
            then(self._last)
        self._wake.set()
