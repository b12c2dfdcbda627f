"""The geometry of a report's plots: what stands where in an SVG, computed from the calls of a replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from anchorline.bench.live.report import LiveCall

WIDTH = 880.0
HEIGHT = 280.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 12.0, 36.0
MOST_MARKS = 600
"""Bars or points of a line; more calls are drawn several at a time, since a screen has no more room."""
Y_TICKS = 5
X_TICKS = 10


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    x: float
    width: float
    y: float
    height: float
    kind: str
    """Of what it is a count; the style sheet knows it."""
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    points: str
    kind: str


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Marks in a frame of WIDTH × HEIGHT; the origin is its upper left corner."""

    title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()


def tokens_per_call(calls: Sequence[LiveCall]) -> Plot:
    """Restored and prefilled tokens of each call, stacked, and a mark where a perfect cache would have parted them.

    ``calls`` are answered, in the order they were sent. What a server does not say is drawn as unknown.
    """
    size = max(1, math.ceil(len(calls) / MOST_MARKS))
    groups = [calls[first : first + size] for first in range(0, len(calls), size)]
    stacks = [_stack(group) for group in groups]
    top, y_ticks = _linear([sum(stack.values()) for stack in stacks])
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    bars: list[Bar] = []
    for place, (group, stack) in enumerate(zip(groups, stacks, strict=True)):
        x, width = LEFT + place * slot + slot * 0.1, slot * 0.8
        title, base = _title(group), 0.0
        for kind, tokens in stack.items():
            y = _y(base + tokens, top)
            bars.append(Bar(x=x, width=width, y=y, height=_y(base, top) - y, kind=kind, title=title))
            base += tokens
        perfect = base - _mean([call.oracle_tokens or 0 for call in group])
        bars.append(Bar(x=x, width=width, y=_y(perfect, top) - 0.75, height=1.5, kind="oracle", title=title))
    return Plot(title="Tokens of each call", x_ticks=_calls_axis(len(calls)), y_ticks=y_ticks, bars=tuple(bars))


def prefilled_so_far(calls: Sequence[LiveCall]) -> Plot:
    """Prefilled tokens summed up call by call, and the same of a perfect cache. All calls say what was prefilled."""
    prefilled = list(accumulate(call.measured.counts.prefilled_tokens or 0 for call in calls if call.measured))
    oracle = list(accumulate(call.oracle_tokens or 0 for call in calls))
    top, y_ticks = _linear([prefilled[-1], oracle[-1]])
    lines = tuple(Line(_steps(sums, top), kind) for sums, kind in ((prefilled, "prefilled"), (oracle, "oracle")))
    return Plot(title="Prefilled tokens so far", x_ticks=_calls_axis(len(calls)), y_ticks=y_ticks, lines=lines)


def ttft_per_call(calls: Sequence[LiveCall]) -> Plot:
    """Time to the first token of each call, on a logarithmic scale."""
    times = [max(0.1, call.measured.ttft_ms) if call.measured and call.measured.ttft_ms else None for call in calls]
    low, high, y_ticks = _logarithmic([ms for ms in times if ms is not None])
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(calls))
    dots = tuple(
        Dot(
            LEFT + (place + 0.5) * slot,
            _y(math.log10(ms) - low, high - low),
            {True: "warm", False: "cold", None: "unknown"}[call.warm],
            _title([call]),
        )
        for place, (call, ms) in enumerate(zip(calls, times, strict=True))
        if ms is not None
    )
    return Plot(title="TTFT of each call", x_ticks=_calls_axis(len(calls)), y_ticks=y_ticks, dots=dots)


def duration(ms: float) -> str:
    """A time as a person writes it: 0.42 ms, 75 ms, 1.30 s, 61 s."""
    value, unit = (ms, "ms") if ms < 999.5 else (ms / 1000, "s")
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def _stack(calls: Sequence[LiveCall]) -> dict[str, float]:
    """Mean tokens by kind, from the bottom up."""
    counts = [call.measured.counts for call in calls if call.measured]
    if any(count.cached_tokens is None for count in counts):
        return {"unknown": _mean([count.prompt_tokens for count in counts])}
    return {
        "restored": _mean([count.cached_tokens or 0 for count in counts]),
        "prefilled": _mean([count.prefilled_tokens or 0 for count in counts]),
    }


def _title(calls: Sequence[LiveCall]) -> str:
    """What a mark says when it is pointed at."""
    if len(calls) > 1:
        return f"{len(calls)} calls from {calls[0].trace} {calls[0].index} on, on average"
    call = calls[0]
    assert call.measured is not None, "only answered calls are drawn"
    counts, ttft = call.measured.counts, call.measured.ttft_ms
    said = [f"{call.trace}, call {call.index}", f"prompt {counts.prompt_tokens:,}"]
    if counts.cached_tokens is not None:
        said.append(f"restored {counts.cached_tokens:,}")
    if counts.prefilled_tokens is not None:
        said.append(f"prefilled {counts.prefilled_tokens:,}")
    said.append(f"oracle {call.oracle_tokens or 0:,}")
    if ttft is not None:
        said.append(f"TTFT {duration(ttft)}")
    # Anchorline's own: where the prefix came from, and why not more of it did.
    said += [f"{name} {told}" for name in ("plan", "miss") if (told := call.measured.timings.get(name))]
    return " · ".join(said)


def _steps(sums: Sequence[int], top: float) -> str:
    """A line that rises to each of ``sums`` where its call is drawn."""
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(sums))
    step = max(1, math.ceil(len(sums) / MOST_MARKS))
    points, y = [], _y(0, top)
    for place in sorted({*range(0, len(sums), step), len(sums) - 1}):
        x = LEFT + (place + 0.5) * slot
        points.append(f"{x:.1f},{y:.1f}")
        y = _y(sums[place], top)
        points.append(f"{x:.1f},{y:.1f}")
    return " ".join([f"{LEFT},{_y(0, top):.1f}", *points, f"{WIDTH - RIGHT},{y:.1f}"])


def _y(value: float, top: float) -> float:
    """Where ``value`` of a scale from 0 to ``top`` lies; larger values lie higher."""
    return HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP)


def _linear(values: Sequence[float]) -> tuple[float, tuple[Tick, ...]]:
    """The top of a scale that holds ``values``, and its ticks."""
    largest = max(values, default=0) or 1
    step = _round_step(largest / Y_TICKS)
    count = math.ceil(largest / step)
    return count * step, tuple(Tick(_y(place, count), _tokens(place * step)) for place in range(count + 1))


def _tokens(count: float) -> str:
    """Short enough for the room left of a plot."""
    return f"{count / 1e6:g} M" if count >= 1e6 else f"{round(count):,}"


def _logarithmic(values: Sequence[float]) -> tuple[float, float, tuple[Tick, ...]]:
    """The decimal logarithms of a scale's ends, which are whole, and a tick for each power of ten between them."""
    low = math.floor(math.log10(min(values, default=1)))
    high = max(low + 1, math.ceil(math.log10(max(values, default=1))))
    return low, high, tuple(Tick(_y(power - low, high - low), _power(power)) for power in range(low, high + 1))


def _power(power: int) -> str:
    return f"{10.0**power:g} ms" if power < 3 else f"{10 ** (power - 3):,} s"


def _calls_axis(calls: int) -> tuple[Tick, ...]:
    """Ticks below the calls; the first is call 1."""
    slot = (WIDTH - LEFT - RIGHT) / max(1, calls)
    step = round(_round_step(calls / X_TICKS))
    numbers = sorted({1, *range(step, calls + 1, step)}) if calls else []
    return tuple(Tick(LEFT + (number - 0.5) * slot, f"{number:,}") for number in numbers)


def _round_step(least: float) -> float:
    """The first of 1, 2, 5, 10, 20, … that is not below ``least``, which counts something whole."""
    power = 10.0 ** math.floor(math.log10(max(1.0, least)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
