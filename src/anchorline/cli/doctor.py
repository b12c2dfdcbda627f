"""``anchorline doctor``: what breaks prefixes in recorded traffic."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from anchorline.bench.trace import read_trace
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.tables import show_table, text_width
from anchorline.config import ModelConfig
from anchorline.doctor.comparison import byte_length
from anchorline.doctor.diagnosis import CountTokens, Diagnosis, diagnose
from anchorline.doctor.layout import ToolOrder, tool_order
from anchorline.doctor.wording import REMEDIES, TITLES, cost, sentence
from anchorline.errors import ModelError
from anchorline.llama.model import DEFAULT_MODEL, default_model_path, load_model
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.select import select_template, template_tokens

TOKEN_BYTES = 4
"""Bytes taken for a token where no vocabulary is at hand."""
INDENT = " " * 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How texts are weighed, and where the template writes the tools."""

    tokens: CountTokens
    order: ToolOrder
    words: str
    """The same for people."""


@click.command("doctor", cls=SuggestingCommand)
@click.argument("trace", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
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
    *, trace: tuple[Path, ...], model: str | None, no_model: bool, as_json: bool, fail_on_findings: bool
) -> None:
    """Say what in recorded calls breaks prefixes, and what to change.

    TRACE is a file that 'anchorline record' wrote. What a change of the prompt costs is counted in tokens. Requests
    are counted from 0, as in the trace. Nothing is sent anywhere.
    """
    if no_model and model is not None:
        raise click.UsageError("--model and --no-model exclude each other")
    traces = [read_trace(path) for path in trace]
    counting = _counting(model, no_model=no_model)
    results = [diagnose(each, count_tokens=counting.tokens, order=counting.order) for each in traces]
    if as_json:
        click.echo(json.dumps([_as_json(result, counting) for result in results], indent=2, ensure_ascii=False))
    else:
        _show(results, counting)
    if fail_on_findings and any(result.findings for result in results):
        raise SystemExit(1)


def _counting(model: str | None, *, no_model: bool) -> Counting:
    """Raises ModelError or ConfigError when the model that was asked for cannot be loaded."""
    if no_model or (model is None and not _default_is_installed()):
        return Counting(
            tokens=lambda text: -(-byte_length(text) // TOKEN_BYTES),
            order=ToolOrder.FIRST,
            words=f"about {TOKEN_BYTES} bytes a token, tools in front",
        )
    name = model or DEFAULT_MODEL
    loaded = load_model(ModelConfig(model=name), weights=False)
    selected = select_template(None, loaded.info, tokens=template_tokens(loaded.tokenizer))
    order = tool_order(PromptBuilder(loaded.tokenizer, selected, clock=datetime.now).render)
    return Counting(
        tokens=cache(lambda text: int(loaded.tokenizer.tokenize(text).size)),
        order=order,
        words=f"counted with {name}, tools {order}",
    )


def _default_is_installed() -> bool:
    try:
        default_model_path()
    except ModelError:
        return False
    return True


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
        "unread": [asdict(each) for each in result.unread],
    }


def _show(results: Sequence[Diagnosis], counting: Counting) -> None:
    for result in results:
        click.echo(f"{result.trace}: {result.requests} requests, {result.prompt_tokens:,} prompt tokens in all")
        click.echo(f"({counting.words})\n")
        if result.findings:
            show_table(_table(result))
        else:
            click.echo("Nothing was found that breaks a prefix.")
        for number, finding in enumerate(result.findings, 1):
            click.echo(f"\n{number}. {TITLES[finding.kind]}")
            _paragraph(f"{sentence(finding)} {cost(finding)}")
            _paragraph(f"Remedy: {REMEDIES[finding.kind]}")
        for each in result.unread:
            _paragraph(f"Request {each.request} was left out: {each.reason}")
        click.echo()


def _paragraph(text: str) -> None:
    """Print wrapped text; paths and names stay whole."""
    lines = textwrap.wrap(text, text_width() - len(INDENT), break_on_hyphens=False, break_long_words=False)
    click.echo(textwrap.indent("\n".join(lines), INDENT))


def _table(result: Diagnosis) -> Table:
    """One row per finding."""
    table = Table()
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("what breaks a prefix", no_wrap=True)
    table.add_column("requests", justify="right", no_wrap=True)
    table.add_column("tokens lost", justify="right", no_wrap=True)
    for number, finding in enumerate(result.findings, 1):
        times, lost = str(len(finding.occurrences)), f"{finding.lost_tokens:,}"
        table.add_row(str(number), TITLES[finding.kind], times, lost)
    return table
