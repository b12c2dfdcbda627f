"""The results of a bench: as a table, as BENCHMARKS.md, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from anchorline.bench.standing.facts import Facts
from anchorline.bench.standing.measures import Sample, Summary, faults_of, summarise
from anchorline.bench.standing.plan import FAN_OUT, HERMES, MIX, RESTART, TOOL_SESSION
from anchorline.bench.standing.servers import LOADS_NO_GGUF, OURS

GIB = 1 << 30
PLAIN = "plain"
UNKNOWN_RAM = "an unknown amount of RAM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A server that took no part in some workloads, or not to their end."""

    workloads: tuple[str, ...]
    server: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """What one model gave with so many of its layers (None: all of them)."""

    model: str
    kind: str
    """Of its memory, as ``anchorline fit`` calls it."""
    layers: int | None
    context_tokens: int
    wall_seconds: float
    samples: tuple[Sample, ...]
    absences: tuple[Absence, ...]
    failure: str | None = None
    """Why it ended early."""

    @property
    def title(self) -> str:
        kept = "" if self.layers is None else f", cut to its first {self.layers} layers"
        return f"{self.model}{kept} ({self.kind}), context {self.context_tokens}"

    @property
    def summaries(self) -> list[Summary]:
        return summarise(self.samples, ours=OURS, at_cuts=self.kind != PLAIN)

    @property
    def faults(self) -> list[str]:
        found = [f"{self.model}: {fault}" for fault in faults_of(self.samples)]
        return found if self.failure is None else [*found, f"{self.model}: {self.failure}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    facts: Facts
    command: str
    wall_seconds: float
    results: tuple[ModelResult, ...]
    skipped: dict[str, str]
    """Workloads that did not run, and why."""

    @property
    def faults(self) -> list[str]:
        return [fault for result in self.results for fault in result.faults]

    def as_json(self) -> dict[str, Any]:
        results = [
            {**asdict(result), "summaries": [asdict(summary) for summary in result.summaries]}
            for result in self.results
        ]
        return {**asdict(self), "results": results, "faults": self.faults}


HEADLINE = {
    TOOL_SESSION: "three turns with tool results",
    FAN_OUT: "one action of a person: chat, title, memory, a second session",
    RESTART: "two turns, a restart of the server, a third turn",
    HERMES: "a recorded Hermes session with its side calls",
    MIX: "six recorded agents taking turns",
}
"""Workloads that the README shows, in its words."""
OUTPUTS = ("--json", "--markdown")
Column = tuple[str, Callable[[Summary], str]]
COLUMNS: tuple[Column, ...] = (
    ("prompt", lambda s: f"{s.prompt_tokens:,}"),
    ("prefilled", lambda s: _shown(s.prefilled_tokens, ",")),
    ("÷ oracle", lambda s: _shown(s.oracle_ratio, ".3f")),
    ("delta", lambda s: _shown(s.delta_tokens, ".0f")),
    ("cold", lambda s: _milliseconds(s.cold_ms)),
    ("warm", lambda s: _milliseconds(s.warm_ms)),
    ("cold ÷ warm", lambda s: _shown(s.cold_to_warm, ".1f")),
    ("warm ÷ delta alone", lambda s: _shown(s.warm_to_prefill, ".3f")),
    ("warm ÷ ours", lambda s: _shown(s.to_ours, ".2f")),
)
LEGEND = (
    "Tokens are of one round, times are TTFT at the client, ratios are medians of the rounds' own: only calls that "
    "ran side by side in one round are compared. *÷ oracle*: prefilled ÷ what a perfect prefix cache would have "
    "prefilled (for models with states one that resumes at message ends). *delta*: what was prefilled of a warm call. "
    "*warm ÷ delta alone*: TTFT of a warm call ÷ the prefill of its delta in it. *warm ÷ ours*: TTFT of a server's "
    "warm calls ÷ Anchorline's. Where no call is warm, *delta* and *warm* are of all calls. -: the server does not "
    "tell, or there is no such call."
)


def table_of(result: ModelResult) -> Table:
    """One row for each workload and server."""
    table = Table(title=result.title, title_justify="left")
    table.add_column("workload", no_wrap=True)
    table.add_column("server", no_wrap=True)
    for heading, _ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in _rows(result.summaries):
        table.add_row(*cells)
    return table


def markdown_of(report: BenchReport) -> str:
    """BENCHMARKS.md as a whole."""
    facts = report.facts
    ram = UNKNOWN_RAM if facts.ram_bytes is None else f"{facts.ram_bytes / GIB:.1f} GiB RAM"
    load = " ".join(f"{value:.2f}" for value in facts.load)
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    lines = [
        "# Benchmarks",
        "",
        "Written by `anchorline bench --markdown`; nothing here is written by hand.",
        "",
        f"* command: `{report.command}` ({report.wall_seconds / 60:.0f} minutes)",
        f"* machine: {facts.processor}, {facts.cores} cores, {ram}, {facts.system}; load average at the start {load}",
        f"* commit: {facts.commit} ({versions})",
        "",
        "| what | figure | command |",
        "|---|---|---|",
        *headline_rows(report),
        "",
        LEGEND,
        "",
    ]
    for result in report.results:
        lines += _section(result)
    lines += ["## Not measured", ""]
    lines += [f"* {name}: {reason}" for name, reason in {**report.skipped, **LOADS_NO_GGUF}.items()]
    lines += ["", "## Faults", "", *([f"* {fault}" for fault in report.faults] or ["None."])]
    return "\n".join(lines) + "\n"


def without_outputs(arguments: Sequence[str]) -> list[str]:
    """A command's arguments but for where it writes its results: those don't depend on it."""
    kept, rest = [], iter(arguments)
    for argument in rest:
        if argument in OUTPUTS:
            next(rest, None)
        elif not argument.startswith(tuple(f"{output}=" for output in OUTPUTS)):
            kept.append(argument)
    return kept


def headline_rows(report: BenchReport) -> list[str]:
    """Rows for the README's table: what each model did with the workloads that it is about."""
    rows = []
    for result in report.results:
        for workload in HEADLINE:
            servers = {summary.server: summary for summary in result.summaries if summary.workload == workload}
            if OURS in servers:
                rows.append(_row([_what(result, servers[OURS]), _figures(servers), "[BENCHMARKS.md](BENCHMARKS.md)"]))
    return rows


def _what(result: ModelResult, ours: Summary) -> str:
    cut = "" if result.layers is None else f", {result.layers} layers"
    return f"{HEADLINE[ours.workload]}, {ours.calls} calls ({result.model}{cut})"


def _figures(servers: dict[str, Summary]) -> str:
    ours = servers[OURS]
    figures = [f"{_shown(ours.prefilled_tokens, ',')} of {ours.prompt_tokens:,} tokens prefilled"]
    figures[0] += f", {_shown(ours.oracle_ratio, '.3f')} × a perfect cache"
    if ours.cold_to_warm is not None:
        figures[0] += f"; warm TTFT {_milliseconds(ours.warm_ms)}, 1/{ours.cold_to_warm:.0f} of cold"
        figures[0] += f" and {_shown(ours.warm_to_prefill, '.3f')} × prefilling the delta alone"
    for name, summary in servers.items():
        if name != OURS:
            told = "" if summary.oracle_ratio is None else f" {summary.oracle_ratio:.3f} × a perfect cache,"
            figures.append(f"{name}{told} TTFT {_shown(summary.to_ours, '.2f')} × ours")
    return "; ".join(figures)


def _section(result: ModelResult) -> list[str]:
    headings = ["workload", "server", *(heading for heading, _ in COLUMNS)]
    workloads = ", ".join(dict.fromkeys(summary.workload for summary in result.summaries))
    lines = [f"## {result.title}: {workloads or 'nothing'}", "", _row(headings), "|---|---|" + "---:|" * len(COLUMNS)]
    lines += [_row(cells) for cells in _rows(result.summaries)]
    if result.absences:
        lines.append("")
    lines += [f"* {absence.server} ({', '.join(absence.workloads)}): {absence.reason}" for absence in result.absences]
    rounds = ", ".join(f"{name} {count}" for name, count in {s.workload: s.rounds for s in result.summaries}.items())
    return [*lines, "", f"Rounds: {rounds or 'none'}; {result.wall_seconds / 60:.1f} minutes.", ""]


def _rows(summaries: Sequence[Summary]) -> list[list[str]]:
    return [[s.workload, s.server, *(cell(s) for _, cell in COLUMNS)] for s in summaries]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"
