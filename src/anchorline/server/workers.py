"""Threads for what would hold up the event loop: rendering and tokenising."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from anchorline.errors import EngineFailure, QueueFull

log = logging.getLogger("anchorline.server")

T = TypeVar("T")

RETRY_AFTER_SECONDS = 1


class _Job(Generic[T]):
    """Work for a thread, and the future of the task that waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[T] = self.loop.create_future()
        self._work = work

    def run(self) -> None:
        """Do the work on a thread; whatever it raises is raised where it is waited for."""
        result: T | None = None
        error: BaseException | None = None
        try:
            result = self._work()
        except BaseException as raised:  # noqa: BLE001  (handed on, to the HTTP edge in the end)
            error = raised
        try:
            self.loop.call_soon_threadsafe(self._settle, result, error)
        except RuntimeError:  # the loop is closed: the server has stopped and nobody waits any more
            return

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self.done.done():  # the task was cancelled
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(result)


class Workers:
    """At most ``threads`` jobs at a time and ``waiting`` more. Thread-safe.

    The threads are daemons, so that a job that does not come to an end cannot keep the process from ending.
    """

    def __init__(self, *, threads: int, waiting: int) -> None:
        self._limit = threads
        self._waiting_limit = waiting
        self._jobs: deque[_Job[Any]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._busy = 0
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, done on one of the threads.

        Raises QueueFull when too many wait, EngineFailure when the system does not give a single thread. A job
        whose task is cancelled is not begun any more.
        """
        job = _Job(work)
        with self._changed:
            waiting = len(self._jobs) - (self._limit - self._busy)
            if waiting >= self._waiting_limit:
                raise QueueFull(
                    waiting=len(self._jobs),
                    limit=self._waiting_limit,
                    retry_after_seconds=RETRY_AFTER_SECONDS,
                    flag="--prepare-queue",
                )
            if self._threads < min(self._limit, self._busy + len(self._jobs) + 1):
                self._start_thread()
            self._jobs.append(job)
            self._changed.notify()
        try:
            return await job.done
        except asyncio.CancelledError:
            with self._changed:
                if job in self._jobs:
                    self._jobs.remove(job)
            raise

    def _start_thread(self) -> None:
        """Start one more thread; where the system has none left, those that are there must do."""
        thread = threading.Thread(target=self._work, name=f"anchorline-worker-{self._threads + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                raise EngineFailure(f"no thread can be started: {error}") from error
            log.warning("only %d threads prepare requests: %s (--prepare-threads)", self._threads, error)
            self._limit = self._threads
            return
        self._threads += 1

    def close(self, *, timeout_seconds: float) -> bool:
        """Take no more jobs and wait for those that run; whether all have ended."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._busy == 0, timeout_seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return
                job = self._jobs.popleft()
                self._busy += 1
            job.run()
            del job  # or it would be held until the next one comes
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
