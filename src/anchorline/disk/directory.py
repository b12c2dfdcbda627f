"""The directory of the disk tier: one server's at a time, with a directory for each namespace in it.

DIR/lock                          held while a server runs
DIR/<digest>/namespace.json       what the namespace is, in words
DIR/<digest>/ab/ab01….segment     a record
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path

from anchorline.disk.files import Files
from anchorline.disk.namespace import FILE_NAME, MAX_FILE_BYTES, Namespace, read_namespace
from anchorline.disk.whole_file import write_whole
from anchorline.errors import ConfigError

log = logging.getLogger("anchorline.disk")

LOCK_NAME = "lock"
_PID_BYTES = 20


class DiskDirectory:
    """Holds the lock from ``open`` to ``close``; the kernel lets go of it when the process ends in any way."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._lock: int | None = None

    def open(self) -> None:
        """Make the directory if need be and lock it. Raises ConfigError when it can't be used or another has it."""
        try:
            make_directories(self.path, self._files)
            self._take_lock()
            if not self._files.status(self.path.resolve()).is_private:
                log.warning(
                    "--cache-disk: others may enter %s, which holds what was said; 'chmod 700' ends that", self.path
                )
        except OSError as error:
            self.close()
            raise ConfigError(f"--cache-disk: {self.path} cannot be used: {error.strerror or error}") from error

    def close(self) -> None:
        """Let go of the lock. Idempotent."""
        if self._lock is not None:
            with suppress(OSError):
                self._files.close(self._lock)
            self._lock = None

    def has_lock(self) -> bool:
        """Whether the lock that is held is still the one in the directory. Raises OSError."""
        if self._lock is None:
            return False
        try:
            there = self._files.status(self.path / LOCK_NAME)
        except FileNotFoundError:
            return False
        return there.identity == self._files.status_of(self._lock).identity

    def is_anothers(self) -> bool:
        """Whether the lock in the directory is not the one that is held. Raises OSError."""
        try:
            return not self.has_lock() and self._files.status(self.path / LOCK_NAME).is_file
        except FileNotFoundError:
            return False

    def restore(self, namespace: Namespace) -> None:
        """Make what is missing: the directory, the lock, the namespace's directory and its description.

        Raises OSError, and ConfigError when the directory went and another server has made it anew.
        """
        own = self.path / namespace.directory
        make_directories(own, self._files)
        if not self._files.status(own).is_directory:
            raise OSError(errno.ELOOP, "not a directory", str(own))
        if not self.has_lock():
            self.close()
            self._take_lock()
        self._describe(namespace)

    def namespaces(self) -> list[str]:
        """Names of the directories that may be those of namespaces. Raises OSError."""
        names = self._files.list(self.path.resolve())
        return sorted(name for name in names if len(name) == 64 and set(name) <= set("0123456789abcdef"))

    def _take_lock(self) -> None:
        path = self.path / LOCK_NAME
        self._lock = self._files.open_lock(path)
        if not self._files.try_lock(self._lock):
            owner = self._owner()
            self.close()
            raise ConfigError(
                f"--cache-disk: {self.path} is in use by another server{owner}; give this one a directory of its own, "
                f"or 'off'"
            )
        self._files.write(self._lock, memoryview(f"{os.getpid():<{_PID_BYTES}}\n".encode()))

    def _owner(self) -> str:
        """The process that holds the lock, in brackets, as far as it is known."""
        assert self._lock is not None
        text = memoryview(bytearray(_PID_BYTES))
        try:
            size = self._files.read(self._lock, text, 0)
        except OSError:
            return ""
        pid = bytes(text[:size]).strip()
        return f" (process {pid.decode()})" if pid.isdigit() else ""

    def _describe(self, namespace: Namespace) -> None:
        """Write namespace.json, unless it is there and right."""
        path = self.path / namespace.directory / FILE_NAME
        there = read_description(path, self._files)
        if there != namespace or there.label != namespace.label:
            write_whole(self._files, path, [namespace.encode()])


def make_directories(path: Path, files: Files) -> None:
    """Make ``path`` and what is missing above it; raises OSError."""
    try:
        files.make_directory(path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_directories(path.parent, files)
        files.make_directory(path)


def read_description(path: Path, files: Files) -> Namespace | None:
    """What a namespace.json says; None when it is missing or damaged."""
    try:
        file = files.open(path)
        try:
            size = files.status_of(file).size_bytes
            data = memoryview(bytearray(min(size, MAX_FILE_BYTES)))
            data = data[: files.read(file, data, 0)]
        finally:
            files.close(file)
        return read_namespace(bytes(data))
    except (OSError, ValueError):
        return None
