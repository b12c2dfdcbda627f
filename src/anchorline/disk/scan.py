"""What lies in the directory of a namespace: records from their headers, and what is none."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from anchorline.disk.catalog import Entry
from anchorline.disk.faults import DiskFault, FaultKind, fault_of
from anchorline.disk.files import Files
from anchorline.disk.format import file_name, key_of_file
from anchorline.disk.namespace import FILE_NAME
from anchorline.disk.record import SegmentRecord
from anchorline.disk.record_files import FoundFile, RecordFiles, in_order
from anchorline.disk.whole_file import TEMPORARY_SUFFIX

_HEX = frozenset(string.hexdigits.lower())


@dataclass(slots=True)
class Found:
    """``entries`` are by the path within the directory of the tier."""

    records: list[SegmentRecord] = field(default_factory=list)
    """Parents before children; those whose parent is not there are left out."""
    entries: dict[str, Entry] = field(default_factory=dict)
    faults: list[DiskFault] = field(default_factory=list)
    orphans: int = 0
    """Records that were left out for that."""


def scan(records: RecordFiles, files: Files, *, cleans: bool, stopped: Callable[[], bool] = lambda: False) -> Found:
    """Read the headers of all files of a namespace.

    ``cleans`` removes what a dead process left half written: for the process that has the lock, as another may be
    writing. Ends early, with what was found so far, once ``stopped()`` says so.
    """
    found = Found()
    all_records: list[SegmentRecord] = []
    for path in _paths(records.directory, files, found.faults):
        if stopped():
            break
        try:
            if key_of_file(path.name.removesuffix(TEMPORARY_SUFFIX)) is None:
                raise _fault(FaultKind.FOREIGN, path)
            if path.name.endswith(TEMPORARY_SUFFIX):
                if cleans:
                    records.remove(path)
                continue
            at = records.read_header(path)
        except DiskFault as fault:
            _note_unusable(path, files, fault, found)
            continue
        all_records.append(at.header.record)
        found.entries[name_of(path)] = _entry(at, records.directory.name)
    found.records, orphans = in_order(all_records)
    found.orphans = len(orphans)
    found.faults += [_fault(FaultKind.PARENT, records.path(orphan)) for orphan in orphans]
    return found


def name_of(path: Path) -> str:
    """Path within the directory of the tier: ``<namespace>/ab/ab01….segment``."""
    return "/".join(path.parts[-3:])


def entry_name(namespace: str, key: bytes) -> str:
    """As ``name_of`` the file of ``key``."""
    return f"{namespace}/{file_name(key)}"


def _entry(at: FoundFile, namespace: str) -> Entry:
    parent = at.header.record.parent
    return Entry(
        size_bytes=at.status.size_bytes,
        last_use_seconds=at.status.modified_seconds,
        file_use_seconds=at.status.modified_seconds,
        parent=None if parent is None else entry_name(namespace, parent),
        owner=at.header.record.owner,
    )


def _note_unusable(path: Path, files: Files, fault: DiskFault, found: Found) -> None:
    """A file that is no record takes room all the same, and may be collected if it has a record's name."""
    found.faults.append(fault)
    if key_of_file(path.name) is None or fault.kind is FaultKind.MISSING:
        return
    try:
        status = files.status(path)
    except OSError:
        return
    found.entries[name_of(path)] = Entry(
        size_bytes=status.size_bytes,
        last_use_seconds=status.modified_seconds,
        file_use_seconds=status.modified_seconds,
        usable=False,
    )


def _paths(directory: Path, files: Files, faults: list[DiskFault]) -> Iterator[Path]:
    """The files in the directories of a namespace, in no order."""
    for shard in _listed(directory, files, faults):
        if len(shard) == 2 and _HEX.issuperset(shard):
            for name in _listed(directory / shard, files, faults):
                yield directory / shard / name
        elif shard.removesuffix(TEMPORARY_SUFFIX) != FILE_NAME:
            faults.append(_fault(FaultKind.FOREIGN, directory / shard))


def _listed(directory: Path, files: Files, faults: list[DiskFault]) -> list[str]:
    try:
        return files.list(directory)
    except FileNotFoundError:
        return []
    except NotADirectoryError:  # or a link to one, where anything may lie
        faults.append(_fault(FaultKind.FOREIGN, directory))
        return []
    except OSError as error:
        faults.append(fault_of(error, directory))
        return []


def _fault(kind: FaultKind, path: Path) -> DiskFault:
    fault = DiskFault(kind)
    fault.path = path
    return fault
