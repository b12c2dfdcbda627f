"""Threads that read files, as many at a time as keep a disk busy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from anchorline.disk.jobs import Failed, handing_on

READ_THREADS = 2
"""One reads while the other checks what it has read."""


class Readers:
    """Carry out jobs in the order in which they come, a few at a time; what one raises goes to ``failed``."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"disk-reader-{number}", daemon=True)
            for number in range(READ_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def do(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def close(self, timeout_seconds: float) -> None:
        """Finish the jobs that are there, and wait so long for it."""
        for _thread in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout_seconds)

    @property
    def are_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            with handing_on(self._failed):
                job()
