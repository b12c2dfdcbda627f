"""``anchorline replay --url``: agent traces against a server that runs, whatever it is, and what it made of them."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from anchorline.bench.client import Client, server_url
from anchorline.bench.live.blocks import is_block_trace, read_block_trace, written_out
from anchorline.bench.live.html import html_of
from anchorline.bench.live.perfect import AnchorlineIds, LlamaServerIds, token_ids_of
from anchorline.bench.live.plots import duration
from anchorline.bench.live.replay import Replaying, replay_live, replayable
from anchorline.bench.live.report import PERCENTILES, LiveReport
from anchorline.bench.live.schedule import PlannedCall
from anchorline.bench.live.sender import Sender, first_model, new_salt, words_per_token
from anchorline.bench.trace import Trace, limited, mix, mix_members, read_trace
from anchorline.cli.replay_verdict import fail_on
from anchorline.cli.tables import plain_console, show_table
from anchorline.cli.traces import told_left_out
from anchorline.errors import ConfigError
from anchorline.terminal import printable

SHOWN_REFUSALS = 3
KEY_FLAG = "--api-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What ``replay`` was told of a server that runs."""

    url: str
    api_key: str | None
    model_name: str | None
    pace: float
    concurrency: int | None
    warm_up: int
    salt: str | None
    no_salt: bool
    block_tokens: int
    html: Path | None
    max_tokens: int
    limit: int | None
    at_cuts: bool
    at_once: bool


def run(paths: Sequence[Path], options: Options, *, mixed: bool, max_ratio: float | None, as_json: bool) -> None:
    """Replay, print what was found, and judge it. Raises ConfigError, CallFailed, Unreachable or ReplayFailed."""
    url = server_url(options.url, flag="--url")
    _check(options, mixed=mixed)
    with Client(str(url).rstrip("/"), api_key=options.api_key, reuses_connections=False) as client:
        model = options.model_name or first_model(client)
        traces = [limited(_read(path, client, model, options), options.limit) for path in paths]
        if mixed:
            traces = mix_members(traces) if options.at_once else [mix(traces)]
        groups = [("mix" if mixed else "all", traces)] if options.at_once else [(t.name, [t]) for t in traces]
        ids = token_ids_of(client)
        reports = [_replayed(name, lanes, client, ids, model, options) for name, lanes in groups]
    if options.html is not None:
        command = shlex.join(["anchorline", *without_key(sys.argv[1:])])
        _write(options.html, html_of(reports, command=command, written=datetime.now()))
    if as_json:
        click.echo(json.dumps([_as_json(report) for report in reports], indent=2))
    else:
        _show(reports)
    _judge(reports, max_ratio=max_ratio)


def without_key(arguments: Sequence[str]) -> list[str]:
    """``arguments`` for a report that others may see."""
    shown: list[str] = []
    for argument in arguments:
        if shown and shown[-1] == KEY_FLAG:
            shown.append("KEY")
        else:
            shown.append(f"{KEY_FLAG}=KEY" if argument.startswith(f"{KEY_FLAG}=") else argument)
    return shown


def _check(options: Options, *, mixed: bool) -> None:
    """Raise ConfigError for options that do not go together."""
    if options.no_salt and options.salt is not None:
        raise ConfigError("--salt and --no-salt exclude each other")
    if options.salt is not None and not options.salt.strip():
        raise ConfigError("--salt must not be empty")
    if mixed and not options.at_once and (math.isfinite(options.pace) or (options.concurrency or 1) > 1):
        raise ConfigError(
            "the calls of a --mix have no common clock: leave out --pace and --concurrency, or add --at-once"
        )


def _read(path: Path, client: Client, model: str | None, options: Options) -> Trace:
    """The calls of a trace of either kind; says on stderr which were left out. Raises ConfigError or CallFailed."""
    if is_block_trace(path):
        blocks = read_block_trace(path, block_tokens=options.block_tokens)
        blocks = dataclasses.replace(blocks, lines=blocks.lines[: options.limit])
        ratio = words_per_token(
            Sender(
                client=client,
                model=model,
                max_tokens=1,
                salt=new_salt(),
                api_key=options.api_key,
                wants_reply_ids=False,
            )
        )
        return written_out(blocks, block_tokens=options.block_tokens, words_per_token=ratio)
    trace = read_trace(path)
    kept, left_out = replayable(trace)
    places = {f"call {place}": reason for place, reason in left_out.items()}
    for line in told_left_out(trace.name, places, calls=len(trace.requests)):
        click.echo(line, err=True)
    if not kept.requests:
        raise ConfigError(f"no call can be sent again of: {trace.name}")
    return kept


def _replayed(
    name: str,
    traces: Sequence[Trace],
    client: Client,
    ids: AnchorlineIds | LlamaServerIds | None,
    model: str | None,
    options: Options,
) -> LiveReport:
    how = Replaying(
        pace=options.pace,
        concurrency=options.concurrency or len(traces),
        overlapping=options.concurrency is not None and options.concurrency > 1,
        warm_up=options.warm_up,
        salt=None if options.no_salt else options.salt or new_salt(),
        model=model,
        max_tokens=options.max_tokens,
        at_cuts=options.at_cuts,
    )
    with ExitStack() as stack:
        progress = _shown(stack, name, sum(len(trace.requests) for trace in traces))
        return replay_live(traces, client, ids, name=name, how=how, api_key=options.api_key, progress=progress)


def _shown(stack: ExitStack, name: str, calls: int) -> Callable[[PlannedCall], None]:
    """Shows which call was answered last, until ``stack`` is closed."""
    status = stack.enter_context(plain_console(stderr=True).status(f"{name}: {calls} calls"))
    return lambda call: status.update(f"{name}: {calls} calls, {call.trace} {call.index + 1}")


def _write(path: Path, page: str) -> None:
    """Halves of characters, which names of files and words of servers may hold, become question marks."""
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"--html {path}: {error}") from error


def _as_json(report: LiveReport) -> dict[str, Any]:
    """JSON knows no infinity."""
    pace = report.settings["pace"]
    return {
        **report.as_json(),
        "settings": {**report.settings, "pace": pace if math.isfinite(pace) else None},
    }


def _show(reports: Sequence[LiveReport]) -> None:
    show_table(tokens_table(reports))
    click.echo()
    show_table(times_table(reports))
    click.echo()
    for report in reports:
        if not report.wrong_sums:
            click.echo(f"{report.name}: {_sums(report)}")
        late_seconds = max((call.late_seconds for call in report.calls), default=0.0)
        if math.isfinite(report.settings["pace"]) and late_seconds >= 1:
            click.echo(f"{report.name}: calls were sent up to {late_seconds:.0f} s late for want of --concurrency")


def _sums(report: LiveReport) -> str:
    if not report.checked:
        return "the server reports nothing that restored + prefilled = prompt could be checked by"
    return f"restored + prefilled = prompt (checked in {report.checked} of {len(report.answered)} answers)"


def tokens_table(reports: Sequence[LiveReport]) -> Table:
    """One row per replay."""
    table = Table(title=f"Replayed against {reports[0].url}, in tokens", title_justify="left")
    table.add_column("trace", no_wrap=True)
    for heading in ("calls", "refused", "prompt", "restored", "prefilled", "oracle", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("oracle by", no_wrap=True)
    for report in reports:
        table.add_row(
            report.name,
            str(len(report.calls)),
            str(len(report.refused)),
            str(report.prompt_tokens),
            _known(report.cached_tokens),
            _known(report.prefilled_tokens),
            str(report.oracle_tokens),
            "-" if report.ratio is None else f"{report.ratio:.4f}",
            report.oracle,
        )
    return table


def times_table(reports: Sequence[LiveReport]) -> Table:
    """A row for each kind of time of each replay."""
    table = Table(title="Times (warm: at least half of the prompt was restored)", title_justify="left")
    table.add_column("trace", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("count", *(f"p{percent}" for percent in PERCENTILES), "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for report in reports:
        for name, spread in report.named_times():
            values = (*spread.percentiles, spread.largest)
            table.add_row(report.name, name, str(spread.count), *map(duration, values))
    return table


def _known(tokens: int | None) -> str:
    return "-" if tokens is None else str(tokens)


def _judge(reports: Sequence[LiveReport], *, max_ratio: float | None) -> None:
    """Raise ReplayFailed when a report is not good enough."""
    problems = []
    for report in reports:
        if report.refused:
            shown = "; ".join(
                f"{c.trace} {c.index}: {printable(str(c.error))}" for c in report.refused[:SHOWN_REFUSALS]
            )
            problems.append(f"{report.name}: {len(report.refused)} of {len(report.calls)} calls refused ({shown})")
        if report.wrong_sums:
            shown = ", ".join(f"{call.trace} {call.index}" for call in report.wrong_sums[:SHOWN_REFUSALS])
            problems.append(
                f"{report.name}: restored + prefilled is not the prompt in {len(report.wrong_sums)}: {shown}"
            )
        if max_ratio is not None and report.ratio is None:
            problems.append(f"{report.name}: the server does not report what --max-ratio is about")
        elif max_ratio is not None and report.ratio is not None and report.ratio > max_ratio:
            problems.append(f"{report.name}: prefilled {report.ratio:.4f} times the oracle (--max-ratio {max_ratio})")
    fail_on(problems)
