"""The report of a replay as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources

import jinja2

from anchorline.bench.live import plots
from anchorline.bench.live.perfect import OracleKind
from anchorline.bench.live.plots import Plot
from anchorline.bench.live.report import PERCENTILES, LiveCall, LiveReport, Spread

TEMPLATE = "report.html.jinja"
MOST_ROWS = 1000
"""Calls that are listed one by one; the JSON has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the page shows of one replay. Plots that a server says too little for are None."""

    report: LiveReport
    calls: tuple[LiveCall, ...]
    """Those that were answered, in the order they were sent."""
    per_call: Plot
    so_far: Plot | None
    ttft: Plot
    times: tuple[tuple[str, Spread], ...]

    @property
    def listed(self) -> tuple[LiveCall, ...]:
        return self.calls[:MOST_ROWS]

    @property
    def settings(self) -> str:
        """How calls were sent, in words."""
        how = self.report.settings
        pace = f"{how['pace']:g} × the recorded pace" if math.isfinite(how["pace"]) else "no time between calls"
        salt = "no salt" if how["salt"] is None else f"salt {how['salt']}"
        return (
            f"Model {how['model'] or 'as recorded'}; {pace}, at most {how['concurrency']} at the same time; replies of "
            f"at most {how['max_tokens']} tokens; {how['warm_up']} to warm up; {salt}."
        )

    @property
    def exact(self) -> bool:
        return self.report.oracle is OracleKind.TOKEN_IDS


def html_of(reports: Sequence[LiveReport], *, command: str, written: datetime) -> str:
    """The page of ``reports``; ``command`` is what made them."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"count": _count, "duration": plots.duration, "px": lambda value: f"{value:.1f}"}
    source = resources.files("anchorline.bench.live").joinpath(TEMPLATE).read_text("utf-8")
    return environment.from_string(source).render(
        sections=[_section(report) for report in reports],
        command=command,
        written=written,
        percentiles=PERCENTILES,
        frame=plots,
    )


def _section(report: LiveReport) -> Section:
    calls = tuple(sorted(report.answered, key=lambda call: call.sent_seconds))
    return Section(
        report=report,
        calls=calls,
        per_call=plots.tokens_per_call(calls),
        so_far=plots.prefilled_so_far(calls) if report.prefilled_tokens is not None else None,
        ttft=plots.ttft_per_call(calls),
        times=tuple(report.named_times()),
    )


def _count(value: int | None) -> str:
    return "not reported" if value is None else f"{value:,}"
