"""What the machine has to offer: RAM, room on disk, cores and open files, as far as this process may use them.

``root`` is where ``proc`` and ``sys`` lie.
"""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from anchorline.errors import ConfigError

GIB = 1 << 30

OTHER_FILES = 128
"""Open files that a server needs besides its connections, with room to spare."""

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Memory:
    """RAM of which ``available_bytes`` can still be taken without swapping."""

    total_bytes: int
    available_bytes: int


def default_cache_bytes(*, root: Path = _ROOT) -> int:
    """A quarter of the free RAM, at least 1 GiB."""
    memory = read_memory(root=root)
    return max(0 if memory is None else memory.available_bytes // 4, GIB)


def default_disk_bytes(path: Path) -> int:
    """A tenth of what is free where ``path`` is or will be, at least 1 MiB and at most 20 GiB."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return min(max(shutil.disk_usage(path).free // 10, 1 << 20), 20 * GIB)


def read_memory(*, root: Path = _ROOT) -> Memory | None:
    """The tightest of the machine's RAM and the limits of our control group and its parents; None when unknown.

    Reads a few small files of the kernel.
    """
    return min(_memory_bounds(root), key=lambda bound: bound.available_bytes, default=None)


def total_ram_bytes(*, root: Path = _ROOT) -> int | None:
    """RAM that this process could have if it were alone; None when unknown."""
    return min((bound.total_bytes for bound in _memory_bounds(root)), default=None)


def physical_cores(*, root: Path = _ROOT, allowed: set[int] | None = None) -> int:
    """Cores that this process may run on, hyper-threads counted once; at least 1."""
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return max(1, len({_text(root / topology.format(cpu)) or f"{cpu}" for cpu in allowed}))


def allow_open_files(*, connections: int) -> None:
    """Let this process open a file for each connection; raises its soft limit where that is too low.

    Raises ConfigError naming --max-connections when the system sets the limit lower.
    """
    needed = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"--max-connections {connections} needs {needed} open files, but this process may have only {hard} "
            f"(ulimit -Hn); use at most {hard - OTHER_FILES}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _memory_bounds(root: Path) -> list[Memory]:
    bounds = [_kernel_memory(root), *_cgroup_memory(root)]
    return [bound for bound in bounds if bound is not None]


def _kernel_memory(root: Path) -> Memory | None:
    """What the kernel counts of the whole machine."""
    lines = (line.split() for line in (_text(root / "proc/meminfo") or "").splitlines())
    figures = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1 and words[1].isdecimal()}
    total, available = figures.get("MemTotal:"), figures.get("MemAvailable:")
    return None if total is None or available is None else Memory(total, available)


def _cgroup_memory(root: Path) -> list[Memory | None]:
    """The limits of our control group and those above it, in version 2 and in version 1."""
    limits = []
    paths = _cgroup_paths(root)
    for folder in _upwards(root / "sys/fs/cgroup", paths.get("", "/")):
        limits.append(_limited(folder / "memory.max", folder / "memory.current", folder / "memory.stat"))
    for folder in _upwards(root / "sys/fs/cgroup/memory", paths.get("memory", "/")):
        used = folder / "memory.usage_in_bytes"
        limits.append(_limited(folder / "memory.limit_in_bytes", used, folder / "memory.stat"))
    return limits


def _cgroup_paths(root: Path) -> dict[str, str]:
    """Our control group by controller; version 2 has none and counts as ""."""
    paths = {}
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _upwards(mount: Path, path: str) -> list[Path]:
    """The folders of a control group and of those above it, up to ``mount``."""
    group = mount / path.strip().lstrip("/")
    return [group, *(folder for folder in group.parents if folder.is_relative_to(mount))]


def _limited(limit_file: Path, used_file: Path, stat_file: Path) -> Memory | None:
    """One control group; None when there is no such, or no limit ("max")."""
    limit, used = _text(limit_file), _text(used_file)
    if limit is None or used is None or not limit.isdecimal() or not used.isdecimal():
        return None
    # Old file cache counts as used but is given up at once; a mapped model file read earlier is such.
    stat = dict(line.split(maxsplit=1) for line in (_text(stat_file) or "").splitlines() if " " in line)
    reclaimable = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
    return Memory(int(limit), max(0, int(limit) - int(used) + reclaimable))


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
