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


def handle_with(handler: signal.Handlers) -> None:
    """Let SIGTERM and SIGINT do what the system does by default, or nothing."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def leave_at_once() -> NoReturn:
    """End the process with exit code 0 without freeing anything, since threads that cannot be ended still run."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
