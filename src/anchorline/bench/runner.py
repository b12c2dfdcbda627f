"""Sends several calls: each one when it is due, some of them at the same time."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX
from typing import Generic, TypeVar

from anchorline.bench.due import Due

Result = TypeVar("Result")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Generic[Result]):
    """One call that has ended. Times are seconds since the start; ``late_seconds`` is how long it was overdue."""

    sent_seconds: float
    ended_seconds: float
    late_seconds: float
    result: Result


def run_plan(
    calls: Sequence[Due],
    send: Callable[[int], Result],
    *,
    concurrency: int,
    clock: Clock = time.monotonic,
) -> list[Done[Result]]:
    """Send ``calls``, at most ``concurrency`` at the same time; returns what became of each, in their order.

    Blocks until all have ended. ``send`` is called by threads, with the place of a call; what it raises ends the run
    once the calls under way have ended, and no others are sent then.
    """
    return _Run(calls, send, concurrency=concurrency, clock=clock).run()


@dataclass(slots=True)
class _Run(Generic[Result]):
    calls: Sequence[Due]
    send: Callable[[int], Result]
    concurrency: int = field(kw_only=True)
    clock: Clock = field(kw_only=True)
    _started: float = 0.0
    _due: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (seconds since the start, place) of the calls that wait for no other."""
    _unanswered: list[int] = field(default_factory=list)
    """Of each call, how many it still waits for."""
    _followers: dict[int, list[int]] = field(default_factory=dict)
    _running: int = 0
    _ended: SimpleQueue[tuple[int, Future[Done[Result]]]] = field(default_factory=SimpleQueue)
    _done: dict[int, Done[Result]] = field(default_factory=dict)

    def run(self) -> list[Done[Result]]:
        self._started = self.clock()
        self._unanswered = [len(call.after) for call in self.calls]
        for place, call in enumerate(self.calls):
            for earlier in call.after:
                self._followers.setdefault(earlier, []).append(place)
            if not call.after:
                self._queue(place, since=0.0)
        with ThreadPoolExecutor(self.concurrency) as pool:
            while len(self._done) < len(self.calls):
                self._send_what_is_due(pool)
                self._wait()
        return [self._done[place] for place in range(len(self.calls))]

    def _queue(self, place: int, *, since: float) -> None:
        call = self.calls[place]
        heapq.heappush(self._due, (max(since + call.gap_seconds, call.earliest_seconds), place))

    def _send_what_is_due(self, pool: ThreadPoolExecutor) -> None:
        while self._due and self._running < self.concurrency and self._due[0][0] <= self._now():
            due, place = heapq.heappop(self._due)
            self._running += 1
            future = pool.submit(self._call, place, due)
            future.add_done_callback(lambda ended, place=place: self._ended.put((place, ended)))  # type: ignore[misc]

    def _call(self, place: int, due: float) -> Done[Result]:
        sent = self._now()
        result = self.send(place)
        return Done(sent_seconds=sent, ended_seconds=self._now(), late_seconds=max(0.0, sent - due), result=result)

    def _wait(self) -> None:
        """Until a call has ended, or the next one is due and may be sent."""
        may_send = self._due and self._running < self.concurrency
        seconds = min(max(0.0, self._due[0][0] - self._now()), TIMEOUT_MAX) if may_send else None
        try:
            place, ended = self._ended.get(timeout=seconds)
        except Empty:
            return
        self._running -= 1
        done = self._done[place] = ended.result()
        for follower in self._followers.pop(place, ()):
            self._unanswered[follower] -= 1
            if not self._unanswered[follower]:
                # Calls end in the order of this queue, so this is the last that it waited for.
                self._queue(follower, since=done.ended_seconds)

    def _now(self) -> float:
        return self.clock() - self._started
