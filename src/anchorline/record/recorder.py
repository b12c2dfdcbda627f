"""Calls in order of arrival, handed on behind the traffic: to a trace file, or to whoever wants to know of them."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import msgspec

logger = logging.getLogger("anchorline.record")

WAITING_CALLS = 64
"""Ended calls that wait for an earlier one to end; one more, and they no longer wait for it."""
UNTAKEN_CALLS = 256
"""Calls that wait to be taken; one more is left out."""

TRACE_PATHS = {
    path: f"/v1{path.removeprefix('/v1')}"
    for ending in ("/chat/completions", "/completions", "/messages", "/responses")
    for path in (ending, f"/v1{ending}")
}
"""Paths of the calls that generate, and how a trace names them."""

NO_OBJECT = "the body is no JSON object"
UNANSWERED = "the upstream gave no answer, or broke it off"
BEHIND = "too many calls waited to be written"
DROPPED = "the end came first"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call that has ended. Times are seconds since the recording began."""

    path: str
    """One of the values of TRACE_PATHS."""
    body: dict[str, Any]
    arrival_seconds: float
    end_seconds: float


Take = Callable[[RecordedCall], str | None]
"""Does what is to be done with a call, on a thread of its own; says why it was left out, None when it was not."""


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call under way. Times are seconds on the recorder's clock."""

    path: str
    body: bytes
    arrival_seconds: float
    end_seconds: float | None = None
    refusal: str | None = None
    """Why it was not served."""
    overtaken: bool = False
    """Later calls were handed on before it."""


class Recorder:
    """Hands each call on once it and all calls before it have ended.

    ``begin``, ``end`` and ``close`` are for one thread. Calls are decoded and taken on another one, so that the traffic
    does not wait. Recorded time begins at ``start_seconds``.
    """

    def __init__(self, take: Take, *, clock: Callable[[], float], start_seconds: float = 0.0) -> None:
        self._take = take
        self._clock = clock
        self._started = clock() - start_seconds
        self._calls: deque[Call] = deque()
        self._waiting: SimpleQueue[Call | None] = SimpleQueue()
        """Calls to be taken; None is the end."""
        self._taker = threading.Thread(target=self._take_all, name="anchorline-trace", daemon=True)
        self._lock = threading.Lock()
        self._untaken = 0
        self._drops = self._closed = False
        self.taken = 0
        self.left_out: Counter[str] = Counter()
        """Calls that were not taken, by reason. This and ``taken`` are final after ``close``."""
        self._taker.start()

    def begin(self, path: str, body: bytes) -> Call:
        """A call has arrived; ``path`` is one of TRACE_PATHS."""
        call = Call(path=TRACE_PATHS[path], body=body, arrival_seconds=self._now())
        self._calls.append(call)
        return call

    def end(self, call: Call, *, refusal: str | None = None) -> None:
        """A call has ended, or its client has left. With a ``refusal`` it is left out."""
        call.end_seconds, call.refusal = self._now(), refusal
        if call.overtaken:
            self._hand_over(call)
        while self._calls and (self._calls[0].end_seconds is not None or len(self._calls) > WAITING_CALLS):
            first = self._calls.popleft()
            if first.end_seconds is None:
                first.overtaken = True
            else:
                self._hand_over(first)

    def drop(self) -> None:
        """Leave out what waits to be taken."""
        self._drops = True

    def close(self, patience_seconds: float | None = None) -> bool:
        """Wait until everything is taken; True when it is.

        With a patience, what still waits after that time is dropped, and as long again is waited for the call that is
        being taken: False when it is not through even then, and what it does no longer counts.
        """
        self._waiting.put(None)
        self._taker.join(patience_seconds)
        self.drop()
        self._taker.join(patience_seconds)
        with self._lock:
            self._closed = True
            dropped, self._untaken = self._untaken, 0
            if dropped:
                self.left_out[DROPPED] += dropped
            return not dropped

    def _now(self) -> float:
        return self._clock() - self._started

    def _hand_over(self, call: Call) -> None:
        with self._lock:
            if self._untaken >= UNTAKEN_CALLS:
                self.left_out[BEHIND] += 1
                return
            self._untaken += 1
        self._waiting.put(call)

    def _take_all(self) -> None:
        while (call := self._waiting.get()) is not None:
            reason = DROPPED if self._drops else self._reason(call)
            with self._lock:
                if self._closed:
                    return
                self._untaken -= 1
                if reason is None:
                    self.taken += 1
                else:
                    self.left_out[reason] += 1

    def _reason(self, call: Call) -> str | None:
        """Why the call was left out, for whatever reason; None when it was taken."""
        try:
            return self._hand_on(call)
        except Exception as error:
            logger.exception("a call was not recorded")
            return type(error).__name__

    def _hand_on(self, call: Call) -> str | None:
        """Why the call was left out; None when it was taken."""
        assert call.end_seconds is not None, "it has ended"
        if call.refusal is not None:
            return call.refusal
        try:
            body = msgspec.json.decode(call.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return NO_OBJECT
        if not isinstance(body, dict):
            return NO_OBJECT
        return self._take(
            RecordedCall(path=call.path, body=body, arrival_seconds=call.arrival_seconds, end_seconds=call.end_seconds)
        )
