"""What signals do to a command."""

from __future__ import annotations

import signal
import sys


def end_in_order_on(*numbers: signal.Signals, exit_code: int | None = None) -> None:
    """Turn signals into SystemExit, so that child servers are stopped and memory is freed on the way out.

    Without ``exit_code`` it is 128 + the signal, as shells show it.
    """

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number if exit_code is None else exit_code)

    for number in numbers:
        signal.signal(number, leave)
