"""What SIGTERM does to a command."""

from __future__ import annotations

import signal
import sys


def end_in_order_on_sigterm(*, exit_code: int = 128 + signal.SIGTERM) -> None:
    """Turn SIGTERM into SystemExit, so that child servers are stopped and files closed on the way out."""

    def leave(_number: int, _frame: object) -> None:
        sys.exit(exit_code)

    signal.signal(signal.SIGTERM, leave)
