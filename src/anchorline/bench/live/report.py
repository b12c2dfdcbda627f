"""What a replay against a running server found: each call, the sums, and the percentiles of its times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anchorline.bench.live.call import Measured
from anchorline.bench.live.perfect import OracleKind

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCall:
    """One call. ``measured`` is None for one that was refused; ``error`` says why."""

    trace: str
    index: int
    """Place in its trace."""
    path: str
    sent_seconds: float
    """Since the start of the replay."""
    late_seconds: float
    """How long it was overdue, because as many calls were under way as were allowed."""
    measured: Measured | None = None
    error: str | None = None
    oracle_tokens: int | None = None

    @property
    def warm(self) -> bool | None:
        """Whether at least half of its prompt was restored; None when the server does not say."""
        if self.measured is None or self.measured.counts.cached_tokens is None:
            return None
        return 2 * self.measured.counts.cached_tokens >= self.measured.counts.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How some times are spread, in milliseconds; ``percentiles`` has one value for each of PERCENTILES."""

    count: int
    percentiles: tuple[float, ...]
    largest: float


def spread_of(values: Iterable[float]) -> Spread | None:
    """None of no values."""
    array = np.fromiter(values, dtype=np.float64)
    if not array.size:
        return None
    percentiles = tuple(float(value) for value in np.percentile(array, PERCENTILES))
    return Spread(count=array.size, percentiles=percentiles, largest=float(array.max()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReport:
    """One replay. ``calls`` are in the order of the traces."""

    name: str
    url: str
    calls: tuple[LiveCall, ...]
    wall_seconds: float
    oracle: OracleKind
    settings: dict[str, Any]

    @property
    def answered(self) -> tuple[LiveCall, ...]:
        return tuple(call for call in self.calls if call.measured is not None)

    @property
    def refused(self) -> tuple[LiveCall, ...]:
        return tuple(call for call in self.calls if call.measured is None)

    @property
    def prompt_tokens(self) -> int:
        return sum(call.counts.prompt_tokens for call in self._measured)

    @property
    def cached_tokens(self) -> int | None:
        """None unless every answered call says it."""
        return _sum([call.counts.cached_tokens for call in self._measured])

    @property
    def prefilled_tokens(self) -> int | None:
        """None unless every answered call says it."""
        return _sum([call.counts.prefilled_tokens for call in self._measured])

    @property
    def oracle_tokens(self) -> int:
        return sum(call.oracle_tokens or 0 for call in self.answered)

    @property
    def ratio(self) -> float | None:
        """Prefilled ÷ oracle; None where either is not known."""
        if self.prefilled_tokens is None or not self.oracle_tokens:
            return None
        return self.prefilled_tokens / self.oracle_tokens

    @property
    def checked(self) -> int:
        """Calls of which restored + prefilled = prompt could be checked."""
        return sum(call.counts.adds_up is not None for call in self._measured)

    @property
    def wrong_sums(self) -> tuple[LiveCall, ...]:
        """Calls whose restored and prefilled tokens are not their prompt."""
        return tuple(call for call in self.answered if call.measured and call.measured.counts.adds_up is False)

    def times(self, *, warm: bool | None = None) -> dict[str, Spread | None]:
        """TTFT, ITL and E2E of all answered calls, or of the warm or the cold ones alone."""
        calls = [c.measured for c in self.answered if c.measured is not None and (warm is None or c.warm is warm)]
        return {
            "TTFT": spread_of(call.ttft_ms for call in calls if call.ttft_ms is not None),
            "ITL": spread_of(gap for call in calls for gap in call.itl_ms),
            "E2E": spread_of(call.e2e_ms for call in calls),
        }

    def named_times(self) -> list[tuple[str, Spread]]:
        """Those that a person wants to see: TTFT also apart for cold and warm calls. Without the ones of no call."""
        named = [(name, spread) for name, spread in self.times().items()]
        named[1:1] = [
            (f"TTFT {word}", self.times(warm=warm)["TTFT"]) for word, warm in (("cold", False), ("warm", True))
        ]
        return [(name, spread) for name, spread in named if spread is not None]

    @property
    def _measured(self) -> list[Measured]:
        return [call.measured for call in self.calls if call.measured is not None]

    def as_json(self) -> dict[str, Any]:
        return {
            "trace": self.name,
            "url": self.url,
            "requests": len(self.calls),
            "refused": len(self.refused),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "prefilled_tokens": self.prefilled_tokens,
            "oracle_tokens": self.oracle_tokens,
            "oracle": self.oracle,
            "ratio": self.ratio,
            "checked_sums": self.checked,
            "wrong_sums": [_place(call) for call in self.wrong_sums],
            "late_seconds": max((call.late_seconds for call in self.calls), default=0.0),
            "wall_seconds": self.wall_seconds,
            "times_ms": {
                group: {name: _spread_json(spread) for name, spread in self.times(warm=warm).items()}
                for group, warm in (("all", None), ("warm", True), ("cold", False))
            },
            "settings": self.settings,
            "calls": [_call_json(call) for call in self.calls],
        }


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _place(call: LiveCall) -> dict[str, Any]:
    return {"trace": call.trace, "index": call.index}


def _spread_json(spread: Spread | None) -> dict[str, float] | None:
    if spread is None:
        return None
    named = {f"p{percent}": value for percent, value in zip(PERCENTILES, spread.percentiles, strict=True)}
    return {"count": spread.count, **named, "max": spread.largest}


def _call_json(call: LiveCall) -> dict[str, Any]:
    flat = {
        **_place(call),
        "path": call.path,
        "sent_seconds": call.sent_seconds,
        "late_seconds": call.late_seconds,
        "error": call.error,
        "oracle_tokens": call.oracle_tokens,
    }
    if call.measured is None:
        return flat
    measured = call.measured
    return {
        **flat,
        **asdict(measured.counts),
        "ttft_ms": measured.ttft_ms,
        "itl_ms": list(measured.itl_ms),
        "e2e_ms": measured.e2e_ms,
        "timings": dict(measured.timings),
    }
