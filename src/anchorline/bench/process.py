"""A server of our own in a child process, for as long as a benchmark runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TypeVar

from anchorline.bench import ending_with_parent
from anchorline.errors import AnchorlineError

LISTENING = re.compile(r"listening on (http://\S+)")
KEPT_LINES = 40
STOP_SECONDS = 20.0
T = TypeVar("T")
_ON_LINUX = sys.platform == "linux"


_running: set[subprocess.Popen[str]] = set()
"""The servers of this process, from their start until they were waited for. Only ``ServerProcess`` changes it."""


class ServerFailed(AnchorlineError):
    """The child ended before it listened; the message holds the end of what it said."""


class ServerProcess:
    """Starts ``command``, waits for its line "listening on URL", and stops it at the end.

    ``listening`` finds that line where a server words it differently; its first group is the URL.
    Use as a context manager. The child's stderr is read to its end by a thread, so it never blocks.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        listening: re.Pattern[str] = LISTENING,
        stop_seconds: float = STOP_SECONDS,
        kept_lines: int = KEPT_LINES,
    ) -> None:
        self._listening = listening
        self._stop_seconds = stop_seconds
        self.url: str | None = None
        self.lines: deque[str] = deque(maxlen=kept_lines)
        self._settled = threading.Event()
        self._process = _starter.start(command, environment)
        self._reader = threading.Thread(target=self._read, name="server-stderr", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_listening(self) -> str:
        """The URL; raises ServerFailed when the child ended first."""
        self._settled.wait()
        if self.url is None:
            code = self._process.wait()
            raise ServerFailed(f"the server ended with code {code} before it listened:{self._last_words()}")
        return self.url

    def _last_words(self) -> str:
        """The error that a server of ours ends with; of what ended otherwise all that it said."""
        if self.lines and self.lines[-1].startswith("Error: "):
            return " " + self.lines[-1].removeprefix("Error: ")
        return "\n" + ("\n".join(self.lines) or "(it said nothing)")

    def stop(self) -> int:
        """Ask the child to end (SIGTERM), kill it when it does not; returns its exit code. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=self._stop_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self.wait()

    def wait(self) -> int:
        """The exit code of the child, once it has ended and everything it said was read."""
        code = self._process.wait()
        _running.discard(self._process)
        self._reader.join()
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))
                found = self._listening.search(line)
                if found is not None and self.url is None:
                    self.url = found.group(1)
                    self._settled.set()
        self._settled.set()


class _Starter:
    """The thread that starts the servers. It lasts as long as this process: to the kernel it is their parent.

    Signals are taken up by the main thread, so none parts what is started here from its note in ``_running``.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="server-starter", daemon=True)

    def start(self, command: Sequence[str], environment: dict[str, str] | None) -> subprocess.Popen[str]:
        """Start and note a server. Also when a signal's exception ends this, none runs that is not noted."""
        if not self._thread.is_alive():
            self._thread.start()
        try:
            return self._done(partial(_start, command, environment))
        finally:
            self._done(lambda: None)

    def _done(self, job: Callable[[], T]) -> T:
        """What ``job`` gives, behind all that was asked for before."""
        done: Future[T] = Future()

        def settle() -> None:
            try:
                done.set_result(job())
            except Exception as error:  # noqa: BLE001  (raised where it is waited for)
                done.set_exception(error)

        self._jobs.put(settle)
        return done.result()

    def _run(self) -> None:
        while True:
            self._jobs.get()()


_starter = _Starter()


def _start(command: Sequence[str], environment: dict[str, str] | None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*_ending_with_us(), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        # A Ctrl-C is for us; we then stop the child in order.
        start_new_session=True,
    )
    _running.add(process)
    return process


def _ending_with_us() -> list[str]:
    """What goes before a command that is not to outlive this process, not even when that is killed."""
    return [sys.executable, "-I", "-S", ending_with_parent.__file__, str(os.getpid())] if _ON_LINUX else []


class StartedServers:
    """The servers that this process has started since this was made, and not waited for."""

    def __init__(self) -> None:
        self._earlier = frozenset(_running)

    def kill(self) -> None:
        """End them at once, without waiting for it. May be called by a handler of signals."""
        for process in tuple(_running):
            if process not in self._earlier:
                process.kill()


def start_anchorline(
    arguments: Sequence[str], *, environment: dict[str, str] | None = None, kept_lines: int = KEPT_LINES
) -> ServerProcess:
    """``anchorline serve`` on a free loopback port, in this interpreter; without a disk tier unless told otherwise."""
    command = [sys.executable, "-m", "anchorline", "serve", "--port", "0", "--cache-disk", "off", *arguments]
    return ServerProcess(command, environment=environment, kept_lines=kept_lines)
