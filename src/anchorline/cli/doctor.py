"""``anchorline doctor``: what breaks prefixes in recorded traffic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from anchorline.bench.trace import read_trace
from anchorline.cli.doctor_counting import TOKEN_BYTES, Counting, counting_with
from anchorline.cli.doctor_live import INDENT, run_live
from anchorline.cli.doctor_table import fault_table
from anchorline.cli.proxy import PORT
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.tables import show_paragraph, show_table
from anchorline.doctor.diagnosis import Diagnosis, diagnose
from anchorline.doctor.wording import REMEDIES, TITLES, cost, saved, sentence
from anchorline.numbers import IntegerRangeType
from anchorline.terminal import printable


@click.command("doctor", cls=SuggestingCommand)
@click.argument("trace", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--live",
    default=None,
    metavar="URL",
    help="Instead of traces, read calls on their way to this server, and tell findings as they come.",
)
@click.option(
    "--port",
    type=IntegerRangeType(0, 65535),
    default=PORT,
    show_default=True,
    help="With --live: port of 127.0.0.1 to listen on; 0 takes a free one.",
)
@click.option(
    "--model",
    default=None,
    show_default="smollm2 if it is installed",
    help="Count with this model's vocabulary and template; weights stay unread.",
)
@click.option("--no-model", is_flag=True, help=f"Take {TOKEN_BYTES} bytes for a token, and tools in front.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, an object for each trace.")
@click.option("--fail-on-findings", is_flag=True, help="Exit with 1 when anything was found.")
def doctor(
    *,
    trace: tuple[Path, ...],
    live: str | None,
    port: int,
    model: str | None,
    no_model: bool,
    as_json: bool,
    fail_on_findings: bool,
) -> None:
    """Say what in agents' calls breaks prefixes, and what to change.

    TRACE is a file that 'anchorline record' wrote. What a change of the prompt costs is counted in tokens. Requests
    are counted from 0, as in the trace. Nothing is sent anywhere; with --live agents use this command's URL in the
    server's place, calls go on to the server alone, nothing of them is written, and Ctrl-C ends it.
    """
    if no_model and model is not None:
        raise click.UsageError("--model and --no-model exclude each other")
    if live is None and not trace:
        raise click.UsageError("Missing argument 'TRACE...', or --live URL")
    if live is not None:
        if trace or as_json or fail_on_findings:
            raise click.UsageError("--live goes with neither traces nor --json nor --fail-on-findings")
        run_live(live, port=port, counting=counting_with(model, no_model=no_model))
        return
    traces = [read_trace(path) for path in trace]
    counting = counting_with(model, no_model=no_model)
    results = [diagnose(each, count_tokens=counting.tokens, order=counting.order) for each in traces]
    if as_json:
        click.echo(json.dumps([_as_json(result, counting) for result in results], indent=2))
    else:
        _show(results, counting)
    if fail_on_findings and any(result.findings for result in results):
        raise SystemExit(1)


def _as_json(result: Diagnosis, counting: Counting) -> dict[str, Any]:
    findings = [
        {
            "kind": finding.kind,
            "title": TITLES[finding.kind],
            "times": len(finding.occurrences),
            "lost_tokens": finding.lost_tokens,
            "summary": sentence(finding),
            "remedy": REMEDIES[finding.kind],
            "occurrences": [asdict(occurrence) for occurrence in finding.occurrences],
        }
        for finding in result.findings
    ]
    return {
        "trace": result.trace,
        "requests": result.requests,
        "prompt_tokens": result.prompt_tokens,
        "counting": counting.words,
        "tool_order": counting.order,
        "findings": findings,
        "savings": [asdict(saving) for saving in result.savings],
        "unread": [asdict(each) for each in result.unread],
    }


def _show(results: Sequence[Diagnosis], counting: Counting) -> None:
    for result in results:
        summary = f"{result.trace}: {result.requests} requests, {result.prompt_tokens:,} prompt tokens in all"
        click.echo(printable(summary))
        click.echo(f"({printable(counting.words)})\n")
        if result.findings:
            rows = [(each.kind, len(each.occurrences), each.lost_tokens) for each in result.findings]
            show_table(fault_table(rows))
        else:
            click.echo("Nothing was found that breaks a prefix.")
        for number, finding in enumerate(result.findings, 1):
            click.echo(f"\n{number}. {TITLES[finding.kind]}")
            show_paragraph(f"{sentence(finding)} {cost(finding)}", indent=INDENT)
            show_paragraph(f"Remedy: {REMEDIES[finding.kind]}", indent=INDENT)
        for saving in result.savings:
            click.echo()
            show_paragraph(saved(saving), indent=INDENT)
        for each in result.unread:
            show_paragraph(f"Request {each.request} was left out: {each.reason}", indent=INDENT)
        click.echo()
