"""What signals do to a command."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import NoReturn


def end_in_order_on(*numbers: signal.Signals) -> None:
    """Turn signals into SystemExit, so that child servers are stopped on the way out.

    The exit code is 128 + the signal, as shells show it. Not for a process with threads inside llama.cpp.
    """

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in numbers:
        signal.signal(number, leave)


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
