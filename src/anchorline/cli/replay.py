"""``anchorline replay``: agent traces against a live server, the oracle, and a peer."""

from __future__ import annotations

import dataclasses
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from anchorline.bench.at_once import replay_at_once
from anchorline.bench.calls import REPLY_TOKENS
from anchorline.bench.client import Client
from anchorline.bench.peers import check_python
from anchorline.bench.replay import replay_trace
from anchorline.bench.report import CallRecord, ReplayReport
from anchorline.bench.trace import Trace, limited, mix, mix_members
from anchorline.cli.replay_servers import ModelFiles, Options, prepare_model, start_peer, start_server
from anchorline.cli.signals import end_in_order_on
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.tables import plain_console, show_table
from anchorline.cli.traces import read_chat_traces
from anchorline.errors import AnchorlineError, ConfigError

MAX_RATIO = 1.02


class ReplayFailed(AnchorlineError):
    """The replay prefilled too much, or gave other answers than without a cache."""


@click.command(cls=SuggestingCommand)
@click.argument("trace", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--mix", "mixed", is_flag=True, help="Replay the traces as one, round-robin, instead of one after the other."
)
@click.option(
    "--at-once",
    is_flag=True,
    help="All traces (with --mix: of the mix) at the same time on one server, each in its own order.",
)
@click.option("--url", default=None, help="Replay against this server, which must be fresh, instead of starting one.")
@click.option("--reference-url", default=None, help="Compare answers with this server (--url's twin with --no-cache).")
@click.option("--model", default="smollm2", show_default=True, help="A GGUF file, 'smollm2' or 'test:ARCH'.")
@click.option("--layers", type=click.IntRange(1), default=None, help="Keep only this many layers of the model.")
@click.option(
    "--ctx", "context_tokens", type=click.IntRange(256, 1 << 20), default=65536, show_default=True, help="As for serve."
)
@click.option(
    "--flash-attn",
    "flash_attention",
    type=click.Choice(["on", "off", "auto"]),
    default="auto",
    show_default=True,
    help="Flash attention of each server. Without it, CPUs read long prompts faster.",
)
@click.option("--serve-args", default="", help="More options for 'anchorline serve', as one string.")
@click.option(
    "--compare-no-cache", "compare", is_flag=True, help="Every answer must equal a --no-cache server's (--exact)."
)
@click.option(
    "--compare-every",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Compare the answers of every so many calls only: without a cache a long trace takes hours.",
)
@click.option("--peer", type=click.Choice(["llama-server"]), default=None, help="Feed the same token ids to a peer.")
@click.option("--peer-python", default=sys.executable, help="The Python that has the peer's package.")
@click.option(
    "--peer-cache-ram-mib", type=click.IntRange(0, 1 << 24), default=None, help="The peer's RAM cache; default 8192."
)
@click.option("--threads", type=click.IntRange(1, 512), default=1, show_default=True, help="Threads of each server.")
@click.option("--parallel", type=click.IntRange(1, 250), default=4, show_default=True, help="Streams of each server.")
@click.option("--max-tokens", type=click.IntRange(1), default=REPLY_TOKENS, show_default=True, help="Longest reply.")
@click.option(
    "--at-cuts", is_flag=True, help="Hold stateful models against an oracle that, like them, resumes only at cuts."
)
@click.option("--limit", type=click.IntRange(1), default=None, help="Replay only this many calls of each trace.")
@click.option(
    "--max-ratio",
    type=click.FloatRange(1.0),
    default=None,
    show_default=f"{MAX_RATIO}; with --compare-no-cache none, since exact mode resumes at cuts alone",
    help="Fail above this ratio.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list, with every call, instead of a table.")
def replay(
    *,
    trace: tuple[Path, ...],
    mixed: bool,
    serve_args: str,
    max_ratio: float | None,
    as_json: bool,
    **values: object,
) -> None:
    """Replay recorded calls, and compare with a perfect prefix cache.

    TRACE is a file that 'anchorline record' wrote; its chat completions are replayed, other calls left out. Each
    trace gets fresh servers; with --at-once all of them share one. Exits with 1 when a ratio is over --max-ratio or an
    answer differs.
    """
    end_in_order_on(signal.SIGTERM)
    options = Options(serve_args=tuple(shlex.split(serve_args)), **values)  # type: ignore[arg-type]
    if options.at_once and (options.compare or options.reference_url is not None):
        raise ConfigError("--at-once compares no answers: leave out --compare-no-cache and --reference-url")
    traces = read_chat_traces(trace)
    if mixed:
        traces = mix_members(traces) if options.at_once else [mix(traces)]
    if options.url is not None and len(traces) > 1 and not options.at_once:
        raise ConfigError("--url names one fresh server, so it takes one trace (or --mix or --at-once)")
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
        client = stack.enter_context(Client(options.url or start_server(stack, options, model)))
        reference_url = options.reference_url
        if reference_url is None and options.compare:
            reference_url = start_server(stack, options, model, "--no-cache")
        reference = stack.enter_context(Client(reference_url)) if reference_url is not None else None
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
    return dataclasses.replace(report, settings=dataclasses.asdict(options))


def _replay_at_once(
    name: str, traces: Sequence[Trace], options: Options, model: ModelFiles, console: Console
) -> ReplayReport:
    with ExitStack() as stack:
        report = replay_at_once(
            traces,
            options.url or start_server(stack, options, model),
            name=name,
            peer=start_peer(stack, options, model) if options.peer is not None else None,
            max_tokens=options.max_tokens,
            at_cuts=options.at_cuts,
            progress=_shown(stack, console, f"{name}: {sum(len(t.requests) for t in traces)} calls at once"),
        )
    return dataclasses.replace(report, settings=dataclasses.asdict(options))


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
    if problems:
        raise ReplayFailed("; ".join(problems))


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
