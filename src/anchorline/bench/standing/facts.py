"""On what a bench ran: machine, load, versions, commit. Reads small files of the kernel, and asks git."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from anchorline import __version__
from anchorline.machine import physical_cores, total_ram_bytes

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """``load`` are the load averages (1, 5 and 15 minutes) when the bench began."""

    processor: str
    cores: int
    ram_bytes: int | None
    system: str
    load: tuple[float, float, float]
    commit: str
    versions: dict[str, str]


def read_facts(*, cpuinfo: Path = Path("/proc/cpuinfo")) -> Facts:
    return Facts(
        processor=_processor(cpuinfo),
        cores=physical_cores(),
        ram_bytes=total_ram_bytes(),
        system=f"{platform.system()} {platform.release()}",
        load=os.getloadavg(),
        commit=_commit(Path(__file__).parent),
        versions={"anchorline": __version__, "llama-cpp-python": metadata.version("llama-cpp-python")},
    )


def _processor(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine() or UNKNOWN
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine() or UNKNOWN


def _commit(folder: Path) -> str:
    """The commit of the source in ``folder``, marked when files differ from it."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN
