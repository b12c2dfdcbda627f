"""The files of a disk tier from outside: looked at and verified at any time, collected while no server runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from anchorline.disk.catalog import Catalog
from anchorline.disk.directory import DiskDirectory, read_description
from anchorline.disk.faults import DiskFault, FaultKind, fault_of
from anchorline.disk.files import Files
from anchorline.disk.namespace import FILE_NAME, Namespace
from anchorline.disk.record import SegmentRecord
from anchorline.disk.record_files import RecordFiles
from anchorline.disk.scan import Found, name_of, scan
from anchorline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NamespaceFiles:
    """One namespace with all that lies in its directory. ``described`` is None when nothing says what it is."""

    records: RecordFiles
    described: Namespace | None
    found: Found

    @property
    def digest(self) -> str:
        return self.records.directory.name

    @property
    def used_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.found.entries.values())

    def last_use_seconds(self, record: SegmentRecord) -> float:
        return self.found.entries[name_of(self.records.path(record))].last_use_seconds


@dataclass(slots=True)
class Verified:
    """``faults`` by what is wrong; a file that another process removed meanwhile is none."""

    files: int = 0
    faults: list[DiskFault] = field(default_factory=list)


@dataclass(slots=True)
class Collected:
    """Files that were removed, and what they took; ``faults`` are those of files that could not be."""

    files: int = 0
    size_bytes: int = 0
    faults: list[DiskFault] = field(default_factory=list)


@contextmanager
def locked(path: Path, files: Files) -> Iterator[DiskDirectory]:
    """The directory, with no server on it. Raises ConfigError."""
    must_exist(path)
    directory = DiskDirectory(path, files)
    directory.open()
    try:
        yield directory
    finally:
        directory.close()


def must_exist(path: Path) -> None:
    """Raises ConfigError unless ``path`` is a directory."""
    if not path.is_dir():
        raise ConfigError(f"--cache-disk: there is no directory {path}")


def look(path: Path, files: Files, *, cleans: bool = False) -> list[NamespaceFiles]:
    """All namespaces with what lies in them, from headers alone. Raises ConfigError."""
    must_exist(path)
    try:
        names = DiskDirectory(path, files).namespaces()
    except OSError as error:
        raise ConfigError(f"--cache-disk: {path} cannot be read: {error.strerror}") from error
    return [_look_at(path / name, files, cleans=cleans) for name in names]


def _look_at(path: Path, files: Files, *, cleans: bool) -> NamespaceFiles:
    records = RecordFiles(path, bytes.fromhex(path.name), files)
    found = scan(records, files, cleans=cleans)
    # What a link leads to is not looked at.
    described = None if path.is_symlink() else read_description(path / FILE_NAME, files)
    if described is not None and described.directory != path.name:
        described = None
    return NamespaceFiles(records, described, found)


def verify(namespaces: list[NamespaceFiles]) -> Verified:
    """Read and check every byte of every record; what ``look`` found wrong is among the faults."""
    verified = Verified()
    for namespace in namespaces:
        verified.files += len(namespace.found.entries)
        verified.faults += namespace.found.faults
        for record in namespace.found.records:
            try:
                namespace.records.verify(namespace.records.path(record))
            except DiskFault as fault:
                if fault.kind is not FaultKind.MISSING:
                    verified.faults.append(fault)
    return verified


def collect(directory: DiskDirectory, files: Files, *, size_bytes: int | None) -> Collected:
    """Remove what cannot be used, then what was used longest ago until all files take at most ``size_bytes``.

    The directory is locked. Also removes directories that are empty then. Raises ConfigError.
    """
    namespaces = look(directory.path, files, cleans=True)
    catalog = Catalog()
    for namespace in namespaces:
        for name, entry in namespace.found.entries.items():
            catalog.add(name, entry)
    collected = Collected()
    for name in catalog.unusable():
        _remove(name, directory.path, files, catalog, collected)
    if size_bytes is not None and catalog.used_bytes > size_bytes:
        for name in catalog.victims(catalog.used_bytes - size_bytes):
            _remove(name, directory.path, files, catalog, collected)
    for namespace in namespaces:
        _remove_empty(namespace.records.directory, files)
    return collected


def _remove(name: str, path: Path, files: Files, catalog: Catalog, collected: Collected) -> None:
    try:
        files.remove(path / name)
    except OSError as error:
        collected.faults.append(fault_of(error, path / name))
        catalog.mark_stuck(name)
        return
    entry = catalog.remove(name)
    assert entry is not None
    collected.files += 1
    collected.size_bytes += entry.size_bytes


def _remove_empty(path: Path, files: Files) -> None:
    """Remove the directory of a namespace, and those in it, as far as they are empty."""
    with suppress(OSError):
        for name in files.list(path):
            if name != FILE_NAME:
                with suppress(OSError):
                    files.remove_directory(path / name)
        if files.list(path) == [FILE_NAME]:
            files.remove(path / FILE_NAME)
        files.remove_directory(path)
