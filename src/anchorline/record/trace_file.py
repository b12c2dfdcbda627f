"""The file that a recording grows in."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from anchorline.bench.trace import read_trace
from anchorline.errors import ConfigError

OWNER_ONLY = 0o600


class TraceFile:
    """Whole lines, appended and flushed one by one, up to a size. Readable by its owner alone.

    ``start_seconds`` is the time at which recording goes on: 0, or the end of what the file holds.
    Raises ConfigError when the file exists and is not to be appended to, holds no trace, or cannot be opened.
    """

    def __init__(self, path: Path, *, append: bool, limit_bytes: int) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        appending = append and path.exists()
        self.start_seconds = _end_of(path) if appending else 0.0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | (0 if appending else os.O_EXCL)
        try:
            self._descriptor = os.open(path, flags, OWNER_ONLY)
        except FileExistsError as error:
            raise ConfigError(f"--out {path} exists; give --append to go on with it, or another name") from error
        except OSError as error:
            raise ConfigError(f"--out {path} cannot be written: {error.strerror}") from error
        self.size_bytes = os.fstat(self._descriptor).st_size

    def append(self, line: bytes) -> bool:
        """Write a line, newline and all; False when the file would grow beyond its limit. Raises OSError."""
        if self.size_bytes + len(line) > self._limit_bytes:
            return False
        written = os.write(self._descriptor, line)
        if written < len(line):  # the disk is full: half a line must not stay
            os.ftruncate(self._descriptor, self.size_bytes)
            raise OSError("the disk took only a part of a line")
        self.size_bytes += written
        return True

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end_of(path: Path) -> float:
    """When the last call of a trace ended. Raises ConfigError when it is no trace, or ends in half a line."""
    requests = read_trace(path).requests
    if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        raise ConfigError(f"--append: {path} does not end with a whole line")
    return max((request.end_seconds for request in requests), default=0.0)
