"""What the machine has to offer: free RAM, cores and open files, as far as this process may use them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from anchorline.errors import ConfigError

GIB = 1 << 30

OTHER_FILES = 128
"""Open files that a server needs besides its connections, with room to spare."""


def default_cache_bytes(*, root: Path = Path("/")) -> int:
    """A quarter of the free RAM, at least 1 GiB."""
    return max(free_ram_bytes(root=root) // 4, GIB)


def free_ram_bytes(*, root: Path = Path("/")) -> int:
    """RAM that can be taken without swapping, within the control group's limit; 0 when unknown.

    ``root`` is where ``proc`` and ``sys`` lie.
    """
    available = _available_bytes(root)
    limits = [left for left in (_cgroup2_left_bytes(root), _cgroup1_left_bytes(root)) if left is not None]
    return max(0, min([available, *limits]))


def physical_cores(*, root: Path = Path("/"), allowed: set[int] | None = None) -> int:
    """Cores that this process may run on, hyper-threads counted once; at least 1."""
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        cores.add((_text(topology / "physical_package_id"), _text(topology / "core_id") or f"cpu{cpu}"))
    return max(1, len(cores))


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


def _available_bytes(root: Path) -> int:
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroup2_left_bytes(root: Path) -> int | None:
    """The least room left in our control group and its parents (v2), or None without a limit."""
    path = next((line[3:] for line in (_text(root / "proc/self/cgroup") or "").splitlines() if line[:3] == "0::"), None)
    if path is None:
        return None
    mount = root / "sys/fs/cgroup"
    group = mount / path.strip().lstrip("/")
    left = [
        _left(folder / "memory.max", folder / "memory.current", folder / "memory.stat")
        for folder in (group, *group.parents)
    ]
    known = [room for room in left if room is not None]
    return min(known) if known else None


def _cgroup1_left_bytes(root: Path) -> int | None:
    folder = root / "sys/fs/cgroup/memory"
    return _left(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes", folder / "memory.stat")


def _left(limit_file: Path, used_file: Path, stat_file: Path) -> int | None:
    limit, used = _text(limit_file), _text(used_file)
    if limit is None or used is None or not limit.isdecimal() or not used.isdecimal():
        return None  # no such control group, or "max"
    # Old file cache counts as used but is given up at once; a mapped model file read earlier is such.
    stat = dict(line.split(maxsplit=1) for line in (_text(stat_file) or "").splitlines() if " " in line)
    reclaimable = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
    return int(limit) - int(used) + int(reclaimable)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
