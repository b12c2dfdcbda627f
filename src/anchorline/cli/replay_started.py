"""``anchorline replay`` without ``--url``: agent traces against servers that it starts, the oracle, and a peer."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from anchorline.bench.at_once import replay_at_once
from anchorline.bench.client import Client
from anchorline.bench.live.blocks import is_block_trace
from anchorline.bench.peers import check_python
from anchorline.bench.replay import replay_trace
from anchorline.bench.report import CallRecord, ReplayReport
from anchorline.bench.trace import Trace, limited, mix, mix_members
from anchorline.cli.replay_servers import ModelFiles, Options, prepare_model, start_peer, start_server
from anchorline.cli.replay_verdict import fail_on
from anchorline.cli.tables import plain_console, show_table
from anchorline.cli.traces import read_chat_traces
from anchorline.errors import ConfigError

MAX_RATIO = 1.02
EXACT_NOTE = "Compared answers need exact mode, which resumes at cuts alone: a ratio above 1 is no fault."


def run(paths: Sequence[Path], options: Options, *, mixed: bool, max_ratio: float | None, as_json: bool) -> None:
    """Replay, print what was found, and judge it. Raises ConfigError, CallFailed or ReplayFailed."""
    if options.at_once and options.compare:
        raise ConfigError("--at-once compares no answers: leave out --compare-no-cache")
    if not options.at_once and math.isfinite(options.pace):
        raise ConfigError("--pace needs --at-once, or --url: between calls that follow each other time changes nothing")
    for path in filter(is_block_trace, paths):
        raise ConfigError(f"{path} has hash_ids and no words: such a trace needs --url")
    traces = read_chat_traces(paths)
    if mixed:
        traces = mix_members(traces) if options.at_once else [mix(traces)]
    if options.peer is not None:
        check_python(options.peer_python)
    traces = [limited(t, options.limit) for t in traces]
    console = plain_console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="anchorline-replay-") as folder:
        model = prepare_model(options, Path(folder))
        if options.at_once:
            reports = [_replay_at_once("mix" if mixed else "all", traces, options, model, console)]
        else:
            reports = [_replay_one(t, options, model, console) for t in traces]
    if as_json:
        click.echo(json.dumps([report.as_json() for report in reports], indent=2))
    else:
        show_table(table_of(reports))
    if max_ratio is None and not options.compare:
        max_ratio = MAX_RATIO
    _judge(reports, max_ratio=max_ratio)


def table_of(reports: Sequence[ReplayReport]) -> Table:
    """One row per trace."""
    table = Table(title="Replayed traces, in tokens (oracle: a perfect prefix cache)", title_justify="left")
    if any(report.compared_answers for report in reports):
        table.caption, table.caption_justify = EXACT_NOTE, "left"
    table.add_column("trace", no_wrap=True)
    headings = ["calls", "skipped", "prompt", "prefilled", "oracle", "ratio", "differing"]
    peer = next((report.peer_name for report in reports if report.peer_name), None)
    if peer is not None:
        headings += [peer, "its ratio"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for report in reports:
        cells = [
            str(len(report.calls)),
            str(report.skipped),
            str(report.prompt_tokens),
            str(report.prefilled_tokens),
            str(report.oracle_tokens),
            _ratio(report.ratio),
            f"{len(report.different_answers)} of {report.compared_answers}" if report.compared_answers else "-",
        ]
        if peer is not None:
            cells += [str(report.peer_prefilled_tokens), _ratio(report.peer_ratio)]
        table.add_row(report.name, *cells)
    return table


def _replay_one(trace: Trace, options: Options, model: ModelFiles, console: Console) -> ReplayReport:
    with ExitStack() as stack:
        client = stack.enter_context(Client(start_server(stack, options, model)))
        reference = None
        if options.compare:
            reference = stack.enter_context(Client(start_server(stack, options, model, "--no-cache")))
        report = replay_trace(
            trace,
            client,
            reference=reference,
            reference_every=options.compare_every,
            peer=start_peer(stack, options, model) if options.peer is not None else None,
            max_tokens=options.max_tokens,
            at_cuts=options.at_cuts,
            progress=_shown(stack, console, f"{trace.name}: {len(trace.requests)} calls"),
        )
    return dataclasses.replace(report, settings=_settings(options))


def _replay_at_once(
    name: str, traces: Sequence[Trace], options: Options, model: ModelFiles, console: Console
) -> ReplayReport:
    with ExitStack() as stack:
        report = replay_at_once(
            traces,
            start_server(stack, options, model),
            name=name,
            peer=start_peer(stack, options, model) if options.peer is not None else None,
            max_tokens=options.max_tokens,
            at_cuts=options.at_cuts,
            pace=options.pace,
            progress=_shown(stack, console, f"{name}: {sum(len(t.requests) for t in traces)} calls at once"),
        )
    return dataclasses.replace(report, settings=_settings(options))


def _settings(options: Options) -> dict[str, Any]:
    """As JSON can have them."""
    return {**dataclasses.asdict(options), "pace": options.pace if math.isfinite(options.pace) else None}


def _shown(stack: ExitStack, console: Console, what: str) -> Callable[[CallRecord], None]:
    """Shows ``what`` is replayed, and the latest call of it, until ``stack`` is closed."""
    status = stack.enter_context(console.status(what))
    return lambda record: status.update(f"{what}, {record.trace} {record.index + 1}")


def _judge(reports: Sequence[ReplayReport], *, max_ratio: float | None) -> None:
    """Raise ReplayFailed when a report is not good enough."""
    problems = []
    for report in reports:
        if report.ratio is None:
            problems.append(f"{report.name}: every call was longer than the context; raise --ctx")
        elif max_ratio is not None and report.ratio > max_ratio:
            problems.append(f"{report.name}: prefilled {report.ratio:.4f} times the oracle (--max-ratio {max_ratio})")
        if report.different_answers:
            shown = ", ".join(str(index) for index in report.different_answers[:10])
            problems.append(f"{report.name}: {len(report.different_answers)} answers differ, calls {shown}")
    fail_on(problems)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
