"""``anchorline simulate``: policies and budgets over recorded traces, without computing anything."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path

import click
from rich.table import Table

from anchorline.bench.trace import Trace, limited, mix, mix_members
from anchorline.cache.policy import EVICTION
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.tables import show_table
from anchorline.cli.traces import read_chat_traces
from anchorline.cli.values import PaceType, format_size, parse_size
from anchorline.config import EngineConfig, ModelConfig
from anchorline.llama.model import load_model
from anchorline.numbers import IntegerRangeType
from anchorline.simulate.calls import PromptSource, SimulatedCall, all_at_once, one_after_another
from anchorline.simulate.runtime import Sizes
from anchorline.simulate.simulation import Outcome, most_bytes, simulation_of

BUDGETS = ("1", "1/2", "1/4", "1/8")


class BudgetType(click.ParamType["int | Fraction"]):
    """A size, or a share of what holds everything: 1/4."""

    name = "budget"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | Fraction:
        text = str(value)
        try:
            if "/" in text or text == "1":
                return _share(text)
            return parse_size(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _share(text: str) -> Fraction:
    """Raises ValueError."""
    with suppress(ValueError, ZeroDivisionError):
        share = Fraction(text)
        if 0 < share <= 1:
            return share
    raise ValueError(f"{text} is no share: write 1 or a fraction below it, such as 1/4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy with one budget over one set of calls."""

    trace: str
    policy: str
    budget: str
    budget_bytes: int
    calls: int
    skipped: int
    prompt_tokens: int
    prefilled_tokens: int
    oracle_tokens: int
    ratio: float | None
    evictions: int
    unsaved: int


@click.command(cls=SuggestingCommand)
@click.argument("trace", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--mix", "mixed", is_flag=True, help="All traces as one, round-robin, with a second session of the first."
)
@click.option(
    "--at-once", is_flag=True, help="All traces (with --mix: of the mix) side by side, each in its own order."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(sorted(EVICTION)),
    help="May be given more than once; default all of them.",
)
@click.option(
    "--cache-ram",
    "budgets",
    multiple=True,
    type=BudgetType(),
    default=BUDGETS,
    show_default=True,
    help="A size, or a share of what holds everything; may be given more than once.",
)
@click.option(
    "--parallel", type=IntegerRangeType(1, 250), default=4, show_default=True, help="Streams at the same time."
)
@click.option("--resident-idle", type=IntegerRangeType(0, 250), default=2, show_default=True, help="As for serve.")
@click.option("--max-passes", type=IntegerRangeType(0), default=16, show_default=True, help="As for serve.")
@click.option(
    "--ctx",
    "context_tokens",
    type=IntegerRangeType(256, 1 << 24),
    default=65536,
    show_default=True,
    help="As for serve.",
)
@click.option(
    "--bytes-per-token",
    type=IntegerRangeType(1, 1 << 30),
    default=1024,
    show_default=True,
    help="Bytes of saved rows; 'anchorline fit' tells a model's.",
)
@click.option(
    "--state-bytes",
    type=IntegerRangeType(0, 1 << 40),
    default=0,
    show_default=True,
    help="Bytes of one saved state; 0 simulates plain attention.",
)
@click.option(
    "--pace",
    type=PaceType(),
    default="none",
    show_default=True,
    help="With --at-once, time between calls: recorded, so many times as fast, or none.",
)
@click.option("--limit", type=IntegerRangeType(1), default=None, help="Only so many calls of each trace.")
@click.option(
    "--model", default="test:llama", show_default=True, help="Whose vocabulary and template make the prompts."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list instead of a table.")
def simulate(
    *,
    trace: tuple[Path, ...],
    mixed: bool,
    at_once: bool,
    policies: tuple[str, ...],
    budgets: tuple[int | Fraction, ...],
    parallel: int,
    resident_idle: int,
    max_passes: int,
    context_tokens: int,
    bytes_per_token: int,
    state_bytes: int,
    pace: float,
    limit: int | None,
    model: str,
    as_json: bool,
) -> None:
    """Show what each eviction policy would prefill of recorded calls.

    TRACE is a file that 'anchorline record' wrote; calls other than chat completions are left out. Engine and cache
    are the server's own, over a runtime that computes nothing: no weights are loaded.
    """
    if not at_once and math.isfinite(pace):
        raise click.UsageError("--pace needs --at-once: between calls that follow each other time changes nothing")
    traces = [limited(each, limit) for each in read_chat_traces(trace)]
    loaded = load_model(ModelConfig(model=model), weights=False)
    try:
        source = PromptSource(loaded)
        sets = _call_sets(traces, source, mixed=mixed, at_once=at_once, pace=pace)
        vocab_size = loaded.info.vocab_size
    finally:
        loaded.close()
    bench = _Bench(
        sizes=Sizes(bytes_per_token=bytes_per_token, state_bytes=state_bytes),
        config=EngineConfig(parallel=parallel, resident_idle=resident_idle, max_passes=max_passes),
        context_tokens=context_tokens,
        vocab_size=vocab_size,
    )
    tables = [bench.rows(name, calls, policies or tuple(EVICTION), budgets) for name, calls in sets.items()]
    if as_json:
        click.echo(json.dumps([asdict(row) for rows in tables for row in rows], indent=2))
        return
    for rows in tables:
        click.echo(_heading(rows[0]))
        show_table(table_of(rows))


def _call_sets(
    traces: Sequence[Trace], source: PromptSource, *, mixed: bool, at_once: bool, pace: float
) -> dict[str, list[SimulatedCall]]:
    if at_once:
        members = mix_members(traces) if mixed else traces
        return {"mix" if mixed else "all": all_at_once(members, source, pace=pace)}
    return {t.name: one_after_another(t, source) for t in ([mix(traces)] if mixed else traces)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """What is the same for every policy and budget."""

    sizes: Sizes
    config: EngineConfig
    context_tokens: int
    vocab_size: int

    def rows(
        self, name: str, calls: Sequence[SimulatedCall], policies: Sequence[str], budgets: Sequence[int | Fraction]
    ) -> list[Row]:
        """One row for each budget and policy."""
        all_bytes = self._run(calls, "none", most_bytes(calls, self.sizes)).peak_bytes
        rows = []
        for budget in budgets:
            nbytes = int(budget * all_bytes) if isinstance(budget, Fraction) else budget
            for policy in policies:
                outcome = self._run(calls, policy, nbytes)
                rows.append(_row(name, policy, str(budget), nbytes, outcome))
        return rows

    def _run(self, calls: Sequence[SimulatedCall], policy: str, budget_bytes: int) -> Outcome:
        config = replace(self.config, eviction=policy, cache_ram_bytes=budget_bytes)
        return simulation_of(
            calls, config, self.sizes, context_tokens=self.context_tokens, vocab_size=self.vocab_size
        ).run()


def _row(name: str, policy: str, budget: str, budget_bytes: int, outcome: Outcome) -> Row:
    return Row(
        trace=name,
        policy=policy,
        budget=budget,
        budget_bytes=budget_bytes,
        calls=len(outcome.calls),
        skipped=outcome.skipped,
        prompt_tokens=outcome.prompt_tokens,
        prefilled_tokens=outcome.prefilled_tokens,
        oracle_tokens=outcome.oracle_tokens,
        ratio=outcome.ratio,
        evictions=outcome.evictions,
        unsaved=outcome.unsaved,
    )


def _heading(row: Row) -> str:
    """What all rows of one set of calls have in common."""
    skipped = f" ({row.skipped} more do not fit --ctx)" if row.skipped else ""
    return (
        f"{row.trace}: {row.calls} calls{skipped}, {row.prompt_tokens:,} prompt tokens\n"
        f"a perfect cache of any size would prefill {row.oracle_tokens:,}\n"
    )


def table_of(rows: Sequence[Row]) -> Table:
    """One line per budget and policy; ``ratio`` is prefilled tokens over those of a perfect cache."""
    table = Table()
    table.add_column("policy", no_wrap=True)
    for heading in ("budget", "size", "prefilled", "ratio", "evictions", "unsaved"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.4f}"
        counts = (f"{row.prefilled_tokens:,}", ratio, str(row.evictions), str(row.unsaved))
        table.add_row(row.policy, row.budget, format_size(row.budget_bytes), *counts)
    return table
