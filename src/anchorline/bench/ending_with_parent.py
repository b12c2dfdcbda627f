"""Becomes a command that the kernel ends when the process that started it has ended, however that came about.

Run by path, as the parent's child, with any Python on Linux; it imports the standard library alone. To the kernel the
parent is the thread that started it, which has to stay. Usage: ending_with_parent.py PARENT_PID COMMAND…
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the kernel knew
        sys.exit("the process that started this has ended")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main()
