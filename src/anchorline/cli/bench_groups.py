"""One group of workloads of ``anchorline bench`` on one model: its servers are started, asked and stopped."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from anchorline.bench.client import CallFailed, Unreachable
from anchorline.bench.long_sessions import measure_footprint
from anchorline.bench.peers import PeerSettings
from anchorline.bench.process import ServerFailed
from anchorline.bench.standing.measures import Sample
from anchorline.bench.standing.plan import HERMES, MIX, MIX_AT_ONCE, Group
from anchorline.bench.standing.recorded import as_recorded, one_after_another
from anchorline.bench.standing.report import Absence, ModelResult
from anchorline.bench.standing.rounds import Lineup
from anchorline.bench.standing.servers import (
    NO_CACHE,
    OURS,
    AnchorlineServer,
    Entrant,
    peer_entrant,
    warm_up_body,
)
from anchorline.bench.standing.texts import Author
from anchorline.bench.standing.workloads import SYNTHETIC, Sizes, Steps
from anchorline.bench.trace import Trace
from anchorline.cli.replay_servers import ModelFiles, model_files, serve_arguments
from anchorline.cli.serve_args import rendering_arguments

PARALLEL = 4
RENDERING_CONTEXT = 512
KIND_CONTEXT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What holds for all models. ``pythons`` has the Python of each peer that can run; ``members`` those of the mix."""

    peers: tuple[str, ...]
    pythons: dict[str, str]
    members: tuple[Trace, ...]
    threads: int
    serve_args: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    """What a group has given so far."""

    samples: list[Sample]
    absences: list[Absence]


def run_group(model: str, group: Group, settings: BenchSettings, *, console: Console) -> ModelResult:
    """Run the workloads of ``group``; shows on ``console`` where it is. A server of ours that fails ends them early."""
    started = time.monotonic()
    found = _Found(samples=[], absences=_absences(group, settings))
    failure: str | None = None
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder:
        files = model_files(
            model,
            folder=Path(folder),
            layers=group.layers,
            context_tokens=group.context_tokens,
            for_peers=bool(settings.pythons),
        )
        kind = measure_footprint(files.served, KIND_CONTEXT).kind
        try:
            _measure(model, files, group, settings, disk=Path(folder) / "disk", found=found, console=console)
        except (CallFailed, Unreachable, ServerFailed) as error:
            failure = str(error)
    return ModelResult(
        model=model,
        kind=kind,
        layers=group.layers,
        context_tokens=group.context_tokens,
        wall_seconds=time.monotonic() - started,
        samples=tuple(found.samples),
        absences=tuple(found.absences),
        failure=failure,
    )


def _measure(
    model: str,
    files: ModelFiles,
    group: Group,
    settings: BenchSettings,
    *,
    disk: Path,
    found: _Found,
    console: Console,
) -> None:
    """Run all workloads on all servers; adds to ``found`` call by call, and at the end which servers failed."""
    with ExitStack() as stack:
        status = stack.enter_context(console.status(f"{model}: starting servers"))
        sizes = _arguments(files, group, settings, context_tokens=RENDERING_CONTEXT)
        renderer = AnchorlineServer([*sizes, *rendering_arguments(settings.serve_args)])
        stack.callback(renderer.close)
        entrants = _entrants(files, group, settings, disk=disk)
        lineup = stack.enter_context(Lineup(entrants, needed=(OURS, NO_CACHE), render=renderer.prompt))
        lineup.warm_up(warm_up_body())
        words_per_token = renderer.words_per_token()
        for workload in group.workloads:
            console.print(f"{model}: {workload}")
            rounds = _rounds(workload, group, settings, words_per_token)
            for step in lineup.run(workload, rounds, without=() if workload in group.uncached else (NO_CACHE,)):
                found.samples += step
                status.update(f"{model}: {workload}, round {step[0].round + 1}, {step[0].call}")
        for server, reason in lineup.failures.items():
            found.absences.append(Absence(workloads=group.workloads, server=server, reason=reason))


def _rounds(workload: str, group: Group, settings: BenchSettings, words_per_token: float) -> Iterator[Steps]:
    """The steps of each round; rounds share nothing."""
    if workload == HERMES:
        yield one_after_another(settings.members[:1])
    elif workload == MIX:
        yield one_after_another(settings.members)
    elif workload == MIX_AT_ONCE:
        yield as_recorded(settings.members)
    else:
        for number in range(group.rounds):
            author = Author(random.Random(f"{workload} {number}"), words_per_token=words_per_token)
            yield SYNTHETIC[workload](author, Sizes(anchor_tokens=group.anchor_tokens))


def _absences(group: Group, settings: BenchSettings) -> list[Absence]:
    """What is known before anything was started."""
    cached = tuple(workload for workload in group.workloads if workload not in group.uncached)
    absences = [Absence(workloads=cached, server=NO_CACHE, reason="takes too long")] if cached else []
    missing = [name for name in settings.peers if name not in settings.pythons]
    return absences + [Absence(workloads=group.workloads, server=name, reason="not installed") for name in missing]


def _entrants(files: ModelFiles, group: Group, settings: BenchSettings, *, disk: Path) -> list[Entrant]:
    ours = _arguments(files, group, settings, context_tokens=group.context_tokens)
    told = [*(("--cache-disk", str(disk)) if group.cache_disk else ()), *settings.serve_args]
    entrants = [Entrant(name=OURS, start=lambda: AnchorlineServer([*ours, *told]))]
    if group.uncached:
        alike = [*ours, *rendering_arguments(settings.serve_args), "--no-cache"]
        entrants.append(Entrant(name=NO_CACHE, start=lambda: AnchorlineServer(alike)))
    if files.peer is not None:
        peer = PeerSettings(
            model=files.peer,
            context_tokens=group.context_tokens,
            parallel=PARALLEL,
            threads=settings.threads,
            flash_attention=group.flash_attention,
        )
        entrants += [peer_entrant(name, peer, python=python) for name, python in settings.pythons.items()]
    return entrants


def _arguments(files: ModelFiles, group: Group, settings: BenchSettings, *, context_tokens: int) -> list[str]:
    arguments = serve_arguments(
        files.served,
        context_tokens=context_tokens,
        threads=settings.threads,
        parallel=PARALLEL,
        flash_attention=group.flash_attention,
    )
    return [*arguments, "--gpu-layers", "0"]
