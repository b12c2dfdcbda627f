"""Removing files and telling that they were of use, while the directory is this server's: another may have taken it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from anchorline.disk.catalog import Catalog
from anchorline.disk.directory import DiskDirectory
from anchorline.disk.faults import DiskFault, FaultKind, faults_of
from anchorline.disk.record_files import RecordFiles


class Remover:
    """For the writer thread. ``lock`` is that of ``catalog``; what goes wrong is told to ``noted``."""

    def __init__(
        self,
        directory: DiskDirectory,
        own: RecordFiles,
        catalog: Catalog,
        lock: threading.Lock,
        noted: Callable[[DiskFault], None],
    ) -> None:
        self._directory = directory
        self._own = own
        self._catalog = catalog
        self._lock = lock
        self._noted = noted

    def is_allowed(self) -> bool:
        """Whether nobody else has the directory now; a fault is noted otherwise."""
        try:
            self._check_lock()
        except DiskFault as fault:
            self._noted(fault)
            return False
        return True

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove files; names those that are gone now."""
        gone = []
        for name in names:
            try:
                self._check_lock()
                self._own.remove(self._path(name))
            except DiskFault as fault:
                self._noted(fault)
                with self._lock:
                    self._catalog.mark_stuck(name)
                continue
            with self._lock:
                self._catalog.remove(name)
            gone.append(name)
        return gone

    def touch(self, names: Iterable[str]) -> list[str]:
        """Let files say that they were of use just now; names those that are not there."""
        gone = []
        for name in names:
            try:
                self._check_lock()
                self._own.touch(self._path(name))
            except DiskFault as fault:
                self._noted(fault)
                if fault.kind is FaultKind.MISSING:
                    gone.append(name)
        return gone

    def _path(self, name: str) -> Path:
        return self._directory.path / name

    def _check_lock(self) -> None:
        """Raises DiskFault when the lock is another's."""
        with faults_of(self._directory.path):
            if self._directory.is_anothers():
                raise DiskFault(FaultKind.PERMISSION, "another server has the directory now")
