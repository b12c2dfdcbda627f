"""What can be wrong with a file of the disk tier. Each costs time, never an answer."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path


class FaultKind(StrEnum):
    """Why a file was not used or not written; the name under which it is counted."""

    MISSING = "missing"
    """The file, or the directory it lies in, is not there."""
    FOREIGN = "foreign"
    """No file of ours: its name, or that it is a link, a directory or a pipe, says so."""
    SHORT = "short"
    """It ends before its header or its payload does."""
    MAGIC = "magic"
    VERSION = "version"
    SIZES = "sizes"
    """The lengths in the header agree neither with each other nor with the file."""
    HEADER_CHECKSUM = "header_checksum"
    CODEC = "codec"
    FIELDS = "fields"
    """The header is whole but holds what no record has."""
    NAMESPACE = "namespace"
    KEY = "key"
    """The key is not that of what the header describes, or not that of the file's name."""
    PARENT = "parent"
    """The record before it is not there, or does not hold the token before its first."""
    PAYLOAD_CHECKSUM = "payload_checksum"
    PERMISSION = "permission"
    NO_SPACE = "no_space"
    """The file system is full, or the user's quota is used up."""
    IO = "io"
    UNEXPECTED = "unexpected"
    """The program itself failed at it."""


DAMAGED = frozenset(
    {
        FaultKind.SHORT,
        FaultKind.MAGIC,
        FaultKind.SIZES,
        FaultKind.HEADER_CHECKSUM,
        FaultKind.KEY,
        FaultKind.PAYLOAD_CHECKSUM,
    }
)
"""A file of this namespace that shows one of these will never be of use again."""

_BY_ERRNO = {
    errno.ENOENT: FaultKind.MISSING,
    errno.ENOTDIR: FaultKind.MISSING,
    errno.EACCES: FaultKind.PERMISSION,
    errno.EPERM: FaultKind.PERMISSION,
    errno.EROFS: FaultKind.PERMISSION,
    errno.ENOSPC: FaultKind.NO_SPACE,
    errno.EDQUOT: FaultKind.NO_SPACE,
    errno.ELOOP: FaultKind.FOREIGN,  # a symbolic link, which O_NOFOLLOW refuses
    errno.EISDIR: FaultKind.FOREIGN,
    errno.ENXIO: FaultKind.FOREIGN,
}


class DiskFault(Exception):
    """One file could not be used or written. Stays within this package and its offline commands."""

    def __init__(self, kind: FaultKind, detail: str = "") -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail
        self.path: Path | None = None
        """The file, once it is known."""

    def __str__(self) -> str:
        where = "" if self.path is None else f" {self.path}"
        return f"{self.kind}{where}{self.detail and f' ({self.detail})'}"


def fault_of(error: OSError, path: Path | None = None) -> DiskFault:
    """The fault that an error of the system is."""
    fault = DiskFault(_BY_ERRNO.get(error.errno or 0, FaultKind.IO), error.strerror or str(error))
    fault.path = path
    return fault


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """What goes wrong inside the block is a DiskFault of the file at ``path``."""
    try:
        yield
    except OSError as error:
        raise fault_of(error, path) from error
    except DiskFault as fault:
        fault.path = fault.path or path
        raise
