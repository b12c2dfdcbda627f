"""File operations that go wrong at the n-th of them."""

from __future__ import annotations

import errno
import threading
from enum import StrEnum
from pathlib import Path
from typing import Any

from anchorline.disk.files import Files, FileStatus


class Trouble(StrEnum):
    """What happens at an operation; one that can't go wrong in that way fails with an error."""

    NO_SPACE = "no space"
    IO = "io"
    PERMISSION = "permission"
    GONE = "gone"
    SHORT = "short"
    """Less is written or read than was asked, without an error."""
    TORN = "torn"
    """A part is written, then the disk fails."""
    BIT_FLIP = "bit flip"
    """One bit is written or read wrong, without an error."""
    DEATH = "death"
    """Nothing works from here on, as if the process had been killed."""


_ERRNO = {
    Trouble.NO_SPACE: errno.ENOSPC,
    Trouble.PERMISSION: errno.EACCES,
    Trouble.GONE: errno.ENOENT,
}


class FaultyFiles(Files):
    """The real operations, counted, with ``trouble`` at the ``at``-th. Waits for no disk, which no test could tell."""

    def __init__(self, trouble: Trouble = Trouble.IO, *, at: int | None = None) -> None:
        self.operations = 0
        self.happened = False
        self.struck = ""
        """The operation that went wrong first."""
        self._trouble = trouble
        self._at = at
        self._name: str | None = None
        self._lock = threading.Lock()

    def strike_next(self, name: str) -> None:
        """Let the next operation of that name go wrong."""
        with self._lock:
            self._name = name

    def _strikes(self, name: str) -> bool:
        """Count an operation; whether it goes wrong."""
        with self._lock:
            self.operations += 1
            dead = self.happened and self._trouble is Trouble.DEATH
            strikes = dead or self.operations == self._at or name == self._name
            if strikes:
                self.struck = self.struck or name
                self.happened, self._name = True, None
            return strikes

    def _error(self) -> OSError:
        return OSError(_ERRNO.get(self._trouble, errno.EIO), str(self._trouble))

    def _do(self, name: str, *arguments: Any) -> Any:
        if self._strikes(name):
            raise self._error()
        return getattr(super(), name)(*arguments)

    def make_directory(self, path: Path) -> None:
        self._do("make_directory", path)

    def list(self, path: Path) -> list[str]:
        names: list[str] = self._do("list", path)
        return names

    def open(self, path: Path) -> int:
        file: int = self._do("open", path)
        return file

    def create(self, path: Path) -> int:
        file: int = self._do("create", path)
        return file

    def status(self, path: Path) -> FileStatus:
        status: FileStatus = self._do("status", path)
        return status

    def status_of(self, file: int) -> FileStatus:
        status: FileStatus = self._do("status_of", file)
        return status

    def expect_reading(self, file: int, offset: int, size: int) -> None:
        self._do("expect_reading", file, offset, size)

    def read(self, file: int, target: memoryview, offset: int) -> int:
        if not self._strikes("read"):
            return super().read(file, target, offset)
        match self._trouble:
            case Trouble.SHORT:
                return super().read(file, target[: max(1, target.nbytes // 2)], offset)
            case Trouble.BIT_FLIP:
                count = super().read(file, target, offset)
                target[count // 2] ^= 1
                return count
        raise self._error()

    def write(self, file: int, data: memoryview) -> int:
        if not self._strikes("write"):
            return super().write(file, data)
        match self._trouble:
            case Trouble.SHORT:
                return super().write(file, data[: max(1, data.nbytes // 2)])
            case Trouble.BIT_FLIP:
                flipped = bytearray(data)
                flipped[len(flipped) // 2] ^= 1
                return super().write(file, memoryview(flipped))
            case Trouble.TORN:
                super().write(file, data[: data.nbytes // 2])
        raise self._error()

    def sync(self, file: int) -> None:
        if self._strikes("sync"):
            raise self._error()

    def close(self, file: int) -> None:
        super().close(file)
        if self._strikes("close"):
            raise self._error()

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename", source, target)

    def remove(self, path: Path) -> None:
        self._do("remove", path)

    def remove_directory(self, path: Path) -> None:
        self._do("remove_directory", path)

    def sync_directory(self, path: Path) -> None:
        if self._strikes("sync_directory"):
            raise self._error()

    def touch(self, path: Path) -> None:
        self._do("touch", path)

    def open_lock(self, path: Path) -> int:
        file: int = self._do("open_lock", path)
        return file

    def try_lock(self, file: int) -> bool:
        got: bool = self._do("try_lock", file)
        return got
