"""``anchorline bench``: the standing workloads on Anchorline and on other servers, side by side."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import click

from anchorline.bench.standing.facts import read_facts
from anchorline.bench.standing.plan import MODELS, WORKLOADS, choose, groups_of
from anchorline.bench.standing.recorded import read_mix
from anchorline.bench.standing.report import BenchReport, ModelResult, markdown_of, table_of, without_outputs
from anchorline.bench.standing.servers import PEERS, find_pythons
from anchorline.cli.bench_groups import BenchSettings, run_group
from anchorline.cli.signals import ending_with_servers
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.tables import plain_console, show_table
from anchorline.errors import AnchorlineError, ConfigError
from anchorline.llama.model import TEST_PREFIX
from anchorline.machine import physical_cores
from anchorline.numbers import IntegerRangeType

ANCHOR_TOKENS = 8500
SMALLEST_ANCHOR = 512
LARGEST_ANCHOR = 48_000


class BenchFailed(AnchorlineError):
    """A server restored what it had never seen, or ours failed."""


@click.command(cls=SuggestingCommand)
@click.option("--quick", is_flag=True, help="Fewer rounds, and without the workloads that take long.")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    type=click.Choice(WORKLOADS),
    help="Only this one; may be given more than once.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    default=MODELS,
    show_default=True,
    help="A GGUF file, 'smollm2' or 'test:ARCH'; may be given more than once.",
)
@click.option(
    "--layers",
    type=IntegerRangeType(1),
    default=None,
    help="Keep only this many layers of each model. Default: all of test models; of files 2 where all take too long.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice(PEERS),
    default=PEERS,
    show_default=True,
    help="Another server to run beside; may be given more than once.",
)
@click.option(
    "--peer-python",
    "peer_pythons",
    multiple=True,
    default=(sys.executable,),
    help="A Python that has a peer's package; may be given more than once. Default: the one that runs this.",
)
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    help="The folder of the recorded traces that the mix is made of.",
)
@click.option("--rounds", type=IntegerRangeType(1, 100), default=None, help="Of each workload but those that run once.")
@click.option(
    "--anchor-tokens",
    type=IntegerRangeType(SMALLEST_ANCHOR, LARGEST_ANCHOR),
    default=ANCHOR_TOKENS,
    show_default=True,
    help="Length of a main conversation, about: system prompt, tools and history.",
)
@click.option(
    "--threads",
    type=IntegerRangeType(1, 512),
    default=None,
    help="Threads of each server. Default: the physical cores.",
)
@click.option("--serve-args", default="", help="More options for 'anchorline serve', as one string.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write every call there.")
@click.option(
    "--markdown",
    "markdown_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results there, as BENCHMARKS.md.",
)
@ending_with_servers()
def bench(
    *,
    quick: bool,
    workloads: tuple[str, ...],
    models: tuple[str, ...],
    layers: int | None,
    peers: tuple[str, ...],
    peer_pythons: tuple[str, ...],
    traces: Path | None,
    rounds: int | None,
    anchor_tokens: int,
    threads: int | None,
    serve_args: str,
    json_path: Path | None,
    markdown_path: Path | None,
) -> None:
    """Run standing workloads on Anchorline and others, side by side.

    Each step of each round is done by all servers in turn, and compared within its round. Exits with 1 when a
    server restored what it had never seen: behind a tool that changed, for one.
    """
    facts, started = read_facts(), time.monotonic()
    chosen, skipped = choose(workloads, quick=quick, has_traces=traces is not None)
    settings = BenchSettings(
        peers=peers,
        pythons=find_pythons(peers, peer_pythons),
        members=tuple(read_mix(traces)) if traces is not None else (),
        threads=threads or physical_cores(),
        serve_args=tuple(shlex.split(serve_args)),
    )
    results: list[ModelResult] = []
    for model in models:
        from_file = not model.startswith(TEST_PREFIX)
        for group in groups_of(
            chosen, from_file=from_file, quick=quick, rounds=rounds, anchor_tokens=anchor_tokens, layers=layers
        ):
            results.append(run_group(model, group, settings, console=plain_console(stderr=True)))
            show_table(table_of(results[-1]))
    report = BenchReport(
        facts=facts,
        command=shlex.join(["anchorline", *without_outputs(sys.argv[1:])]),
        wall_seconds=time.monotonic() - started,
        results=tuple(results),
        skipped=skipped,
    )
    _write(report, json_path=json_path, markdown_path=markdown_path)
    for absence in dict.fromkeys((a.server, a.reason) for result in results for a in result.absences):
        click.echo(": ".join(absence), err=True)
    for name, reason in skipped.items():
        click.echo(f"{name}: {reason}", err=True)
    if report.faults:
        raise BenchFailed("; ".join(report.faults))


def _write(report: BenchReport, *, json_path: Path | None, markdown_path: Path | None) -> None:
    """Raises ConfigError for a file that cannot be written."""
    texts = [(json_path, json.dumps(report.as_json(), indent=2)), (markdown_path, markdown_of(report))]
    for path, text in texts:
        if path is not None:
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"cannot write {path}: {error}") from error
