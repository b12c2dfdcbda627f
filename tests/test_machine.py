"""What the machine offers, read from a made-up /proc and /sys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from anchorline.machine import GIB, default_cache_bytes, physical_cores, read_memory, total_ram_bytes


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def free_ram_bytes(root: Path) -> int:
    memory = read_memory(root=root)
    assert memory is not None
    return memory.available_bytes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 33554432 kB\n")
    return tmp_path


def test_without_limits_it_is_what_the_kernel_calls_available(root: Path) -> None:
    assert free_ram_bytes(root) == 32 * GIB
    assert total_ram_bytes(root=root) == 64 * GIB
    assert default_cache_bytes(root=root) == 8 * GIB


def test_the_cache_gets_a_gibibyte_even_on_a_full_machine(tmp_path: Path) -> None:
    assert read_memory(root=tmp_path) is None
    assert total_ram_bytes(root=tmp_path) is None
    assert default_cache_bytes(root=tmp_path) == GIB


def test_the_tightest_control_group_above_us_counts(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/a/b\n")
    put(root, "sys/fs/cgroup/a/memory.max", str(10 * GIB))
    put(root, "sys/fs/cgroup/a/memory.current", str(2 * GIB))
    put(root, "sys/fs/cgroup/a/b/memory.max", "max")
    put(root, "sys/fs/cgroup/a/b/memory.current", str(GIB))
    assert free_ram_bytes(root) == 8 * GIB
    assert total_ram_bytes(root=root) == 10 * GIB


def test_version_one_control_groups(root: Path) -> None:
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(6 * GIB))
    put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", str(2 * GIB))
    assert default_cache_bytes(root=root) == GIB
    assert free_ram_bytes(root) == 4 * GIB


def test_nested_version_one_control_groups(root: Path) -> None:
    put(root, "proc/self/cgroup", "9:name=systemd:/\n4:cpuset,memory:/a/b\n0::/\n")
    put(root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", str(6 * GIB))
    put(root, "sys/fs/cgroup/memory/a/memory.usage_in_bytes", str(5 * GIB))
    put(root, "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", str(1 << 60))
    put(root, "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", str(GIB))
    assert free_ram_bytes(root) == GIB
    assert total_ram_bytes(root=root) == 6 * GIB


def test_old_file_cache_is_free(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/\n")
    put(root, "sys/fs/cgroup/memory.max", str(10 * GIB))
    put(root, "sys/fs/cgroup/memory.current", str(9 * GIB))
    put(root, "sys/fs/cgroup/memory.stat", f"anon 1\ninactive_file {3 * GIB}\nactive_file 7\n")
    assert free_ram_bytes(root) == 4 * GIB


def test_a_group_over_its_limit_leaves_nothing(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/\n")
    put(root, "sys/fs/cgroup/memory.max", "100")
    put(root, "sys/fs/cgroup/memory.current", "200")
    assert free_ram_bytes(root) == 0


def test_hyper_threads_count_once(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        put(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{siblings}\n")
    assert physical_cores(root=tmp_path, allowed={0, 1, 2, 3}) == 2
    assert physical_cores(root=tmp_path, allowed={0, 1}) == 1


def test_without_a_topology_each_cpu_is_a_core(tmp_path: Path) -> None:
    assert physical_cores(root=tmp_path, allowed={0, 1, 2}) == 3


def test_without_a_control_group_file_the_root_group_counts(root: Path) -> None:
    put(root, "sys/fs/cgroup/memory.max", str(3 * GIB))
    put(root, "sys/fs/cgroup/memory.current", str(GIB))
    assert free_ram_bytes(root) == 2 * GIB


def test_this_machine() -> None:
    assert physical_cores() >= 1
    assert default_cache_bytes() >= GIB


OPEN_FILES = """
import resource, sys
from anchorline.machine import allow_open_files
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
allow_open_files(connections=connections)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("limits", "connections", "said"),
    [
        ((300, 400), 100, "(300, 400)"),
        ((100, 400), 100, "(228, 400)"),
        ((100, 228), 100, "(228, 228)"),
        ((100, 227), 100, "--max-connections 100 needs 228 open files, but this process may have only 227"),
    ],
)
def test_every_connection_may_have_its_file(limits: tuple[int, int], connections: int, said: str) -> None:
    command = [sys.executable, "-c", OPEN_FILES, *map(str, limits), str(connections)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert said in result.stdout + result.stderr
