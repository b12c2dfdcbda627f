"""Files that are under their name whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from anchorline.disk.files import Files

TEMPORARY_SUFFIX = ".tmp"
"""Of a file that is being written; what a dead process left of one is removed."""
BLOCK_BYTES = 4 << 20
"""Read, checked and written at once: large enough for the disk, small enough to be hashed while in the CPU's cache."""


class Stopped(Exception):
    """What was under way was given up, because there is no time left."""


def write_whole(
    files: Files,
    path: Path,
    pieces: Iterable[bytes | memoryview],
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Write ``pieces`` to a file that outlives a power failure; returns its size.

    It takes the place of one of that name. Raises OSError, Stopped once ``stopped()`` says so, and what ``pieces``
    raises; then there is no file of that name, unless there was one before.
    """
    placed = path.with_name(path.name + TEMPORARY_SUFFIX)
    file = _create(files, placed)
    try:
        try:
            size_bytes = sum(_write(files, file, memoryview(piece), stopped) for piece in pieces)
            files.sync(file)
        finally:
            files.close(file)
        files.rename(placed, path)
        placed = path
        files.sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):  # the next start removes what is temporary
            files.remove(placed)
        raise
    return size_bytes


def _create(files: Files, path: Path) -> int:
    try:
        return files.create(path)
    except FileExistsError:
        files.remove(path)
    return files.create(path)


def _write(files: Files, file: int, data: memoryview, stopped: Callable[[], bool]) -> int:
    size_bytes = data.nbytes
    while data.nbytes:
        if stopped():
            raise Stopped
        written = files.write(file, data[:BLOCK_BYTES])
        if written <= 0:
            raise OSError(errno.EIO, "nothing was written")
        data = data[written:]
    return size_bytes
