"""Every file operation of the disk tier, one system call each: tests make any of them fail."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class FileStatus:
    """``modified_seconds`` is since the epoch."""

    size_bytes: int
    modified_seconds: float
    is_file: bool
    """A regular file; links, pipes and directories are none."""
    is_directory: bool
    """No link to one."""
    is_private: bool
    """Nobody but its owner may read, write or enter it."""
    identity: tuple[int, int]
    """Device and inode: what stays when a file is renamed, and changes when it is made anew."""


class Files:
    """The operations; all raise OSError."""

    def make_directory(self, path: Path) -> None:
        """For the owner alone."""
        path.mkdir(mode=0o700)

    def list(self, path: Path) -> list[str]:
        """The names in a directory; a link to one is none."""
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        try:
            return os.listdir(file)
        finally:
            os.close(file)

    def open(self, path: Path) -> int:
        """For reading; neither follows a link nor waits for the writer of a pipe."""
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)

    def create(self, path: Path) -> int:
        """A new file for writing, for the owner alone."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)

    def status(self, path: Path) -> FileStatus:
        return _status(os.lstat(path))

    def status_of(self, file: int) -> FileStatus:
        return _status(os.fstat(file))

    def expect_reading(self, file: int, offset: int, size: int) -> None:
        """Tell the kernel to read ahead."""
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)

    def read(self, file: int, target: memoryview, offset: int) -> int:
        """Bytes read into ``target``; 0 at the end of the file."""
        return os.preadv(file, [target], offset)

    def write(self, file: int, data: memoryview) -> int:
        """Bytes of ``data`` that were written, perhaps not all."""
        return os.write(file, data)

    def sync(self, file: int) -> None:
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def rename(self, source: Path, target: Path) -> None:
        """Over ``target`` if there is one."""
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        """Only an empty one."""
        os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        """So that the names in it outlive a power failure; nothing where the file system has no such thing."""
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(file)

    def touch(self, path: Path) -> None:
        """Set the time of the last change to now."""
        os.utime(path, follow_symlinks=False)

    def open_lock(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)

    def try_lock(self, file: int) -> bool:
        """Whether the lock is this process's now; it goes with the process, however that ends."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _status(found: os.stat_result) -> FileStatus:
    return FileStatus(
        size_bytes=found.st_size,
        modified_seconds=found.st_mtime,
        is_file=stat.S_ISREG(found.st_mode),
        is_directory=stat.S_ISDIR(found.st_mode),
        is_private=not found.st_mode & 0o077,
        identity=(found.st_dev, found.st_ino),
    )
