"""What signals do to a command."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from anchorline.bench.process import StartedServers


@contextmanager
def ending_with_servers() -> Iterator[None]:
    """However the block ends, no server that was started in it is left.

    The first SIGTERM or SIGINT is raised as SystemExit, so that servers are stopped in order on the way out; the exit
    code is 128 + the signal, as shells show it. Later ones kill the servers and raise nothing, so what ends in order
    ends at once, and is not broken off. Not for a process with threads inside llama.cpp.
    """
    servers = StartedServers()
    leaving = False

    def leave(number: int, _frame: object) -> None:
        nonlocal leaving
        if leaving:
            servers.kill()
            return
        leaving = True
        sys.exit(128 + number)

    earlier = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        servers.kill()
        for number, handler in earlier.items():
            signal.signal(number, handler)


def end_at_once_on_signals() -> None:
    """Let SIGTERM and SIGINT do what the system does by default."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def leave_at_once() -> NoReturn:
    """End the process with exit code 0, without the interpreter's own end.

    That end would wait for threads which cannot be ended, and give the signals their defaults back, so that
    one more of them changed the exit code. To ignore them before is no way out: of a signal that comes while
    that is set, Python prints that it was ignored.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
