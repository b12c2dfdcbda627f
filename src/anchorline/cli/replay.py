"""``anchorline replay``: agent traces against a live server, the oracle, and a peer."""

from __future__ import annotations

import dataclasses
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from anchorline.bench.client import Client
from anchorline.bench.models import bench_model
from anchorline.bench.peers import LlamaServer, PeerSettings, check_python
from anchorline.bench.process import start_anchorline
from anchorline.bench.replay import REPLY_TOKENS, ReplayReport, replay_trace
from anchorline.bench.trace import Trace, mix
from anchorline.cli.signals import end_in_order_on
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.tables import show_table
from anchorline.cli.traces import read_chat_traces
from anchorline.config import ModelConfig
from anchorline.errors import AnchorlineError, ConfigError
from anchorline.llama import testmodel
from anchorline.llama.model import TEST_PREFIX, load_model

MAX_RATIO = 1.02


class ReplayFailed(AnchorlineError):
    """The replay prefilled too much, or gave other answers than without a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What ``replay`` was told."""

    url: str | None
    reference_url: str | None
    model: str
    layers: int | None
    context_tokens: int
    serve_args: tuple[str, ...]
    compare: bool
    compare_every: int
    peer: str | None
    peer_python: str
    peer_cache_ram_mib: int | None
    threads: int
    max_tokens: int
    limit: int | None
    at_cuts: bool

    @property
    def exact(self) -> bool:
        return self.compare and self.url is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """``served`` as ``anchorline serve`` takes it; ``peer`` is a file of the same weights, where there is one."""

    served: str
    peer: Path | None


@click.command(cls=SuggestingCommand)
@click.argument("trace", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--mix", "mixed", is_flag=True, help="Replay the traces as one, round-robin, instead of one after the other."
)
@click.option("--url", default=None, help="Replay against this server, which must be fresh, instead of starting one.")
@click.option("--reference-url", default=None, help="Compare answers with this server (--url's twin with --no-cache).")
@click.option("--model", default="smollm2", show_default=True, help="A GGUF file, 'smollm2' or 'test:ARCH'.")
@click.option("--layers", type=click.IntRange(1), default=None, help="Keep only this many layers of the model file.")
@click.option(
    "--ctx", "context_tokens", type=click.IntRange(256, 1 << 20), default=65536, show_default=True, help="As for serve."
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
    trace gets fresh servers. Exits with 1 when a ratio is over --max-ratio or an answer differs.
    """
    end_in_order_on(signal.SIGTERM)
    options = Options(serve_args=tuple(shlex.split(serve_args)), **values)  # type: ignore[arg-type]
    traces = read_chat_traces(trace)
    if mixed:
        traces = [mix(traces)]
    if options.url is not None and len(traces) > 1:
        raise ConfigError("--url names one fresh server, so it takes one trace (or --mix)")
    if options.peer is not None:
        check_python(options.peer_python)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="anchorline-replay-") as folder:
        model = _prepare_model(options, Path(folder))
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


def _prepare_model(options: Options, folder: Path) -> ModelFiles:
    """What each server loads; a test model is written to a file only for the peer."""
    if not options.model.startswith(TEST_PREFIX):
        if options.url is not None and options.peer is None:
            return ModelFiles(served=options.model, peer=None)
        path = bench_model(options.model, folder=folder, layers=options.layers, context_tokens=options.context_tokens)
        return ModelFiles(served=str(path), peer=path)
    if options.layers is not None:
        raise ConfigError("--layers cuts a model file; a test model has none")
    if options.context_tokens > testmodel.MAX_CONTEXT:
        raise ConfigError(
            f"--ctx must be at most {testmodel.MAX_CONTEXT} for a test model, not {options.context_tokens}"
        )
    if options.peer is None:
        return ModelFiles(served=options.model, peer=None)
    path = folder / "test-model.gguf"
    loaded = load_model(ModelConfig(model=options.model, test_context=options.context_tokens))
    testmodel.save(loaded.handle, path)
    loaded.close()
    return ModelFiles(served=options.model, peer=path)


def _replay_one(trace: Trace, options: Options, model: ModelFiles, console: Console) -> ReplayReport:
    calls = len(trace.requests[: options.limit])
    with ExitStack() as stack:
        client = stack.enter_context(Client(options.url or _start(stack, options, model)))
        reference_url = options.reference_url
        if reference_url is None and options.compare:
            reference_url = _start(stack, options, model, "--no-cache")
        reference = stack.enter_context(Client(reference_url)) if reference_url is not None else None
        peer = _start_peer(stack, options, model) if options.peer is not None else None
        status = stack.enter_context(console.status(f"{trace.name}: {calls} calls"))
        report = replay_trace(
            trace,
            client,
            reference=reference,
            reference_every=options.compare_every,
            peer=peer,
            max_tokens=options.max_tokens,
            limit=options.limit,
            at_cuts=options.at_cuts,
            progress=lambda record: status.update(f"{trace.name}: {record.index + 1} of {calls} calls"),
        )
    return dataclasses.replace(report, settings=dataclasses.asdict(options))


def _start(stack: ExitStack, options: Options, model: ModelFiles, *more: str) -> str:
    arguments = [
        model.served,
        "--ctx",
        str(options.context_tokens),
        "--threads",
        str(options.threads),
        "--log-level",
        "warning",
    ]
    if model.served.startswith(TEST_PREFIX):
        arguments += ["--test-context", str(options.context_tokens)]
    if options.exact:
        arguments.append("--exact")
    server = stack.enter_context(start_anchorline([*arguments, *options.serve_args, *more]))
    return server.wait_until_listening()


def _start_peer(stack: ExitStack, options: Options, model: ModelFiles) -> LlamaServer:
    if model.peer is None:
        raise ConfigError("--peer needs --model: the peer loads the model itself")
    settings = PeerSettings(
        model=model.peer,
        context_tokens=options.context_tokens,
        threads=options.threads,
        cache_ram_mib=options.peer_cache_ram_mib,
    )
    return stack.enter_context(LlamaServer(settings, python=options.peer_python))


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
