"""What a replay found: each call, and the sums."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One replayed call. ``oracle_tokens`` is what a perfect cache would have prefilled."""

    trace: str
    index: int
    """Place in its trace."""
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    oracle_tokens: int
    plan: str | None
    ttft_ms: float | None
    same_answer: bool | None
    """Whether the reference server gave the same reply ids; None when it was not asked."""
    peer_prefilled_tokens: int | None = None
    peer_oracle_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The sums of one replay, of one trace or of several at once. ``skipped`` calls did not fit into the context."""

    name: str
    calls: tuple[CallRecord, ...]
    skipped: int
    wall_seconds: float
    peer_name: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        return sum(call.prompt_tokens for call in self.calls)

    @property
    def prefilled_tokens(self) -> int:
        return sum(call.prefilled_tokens for call in self.calls)

    @property
    def oracle_tokens(self) -> int:
        return sum(call.oracle_tokens for call in self.calls)

    @property
    def ratio(self) -> float | None:
        """Prefilled ÷ oracle; None for an empty replay."""
        return self.prefilled_tokens / self.oracle_tokens if self.calls else None

    @property
    def peer_prefilled_tokens(self) -> int | None:
        counts = [c.peer_prefilled_tokens for c in self.calls if c.peer_prefilled_tokens is not None]
        return sum(counts) if counts else None

    @property
    def peer_ratio(self) -> float | None:
        """The peer's own ratio: its replies differ from ours, so its oracle does too."""
        costs = [c.peer_oracle_tokens for c in self.calls if c.peer_oracle_tokens is not None]
        return (self.peer_prefilled_tokens or 0) / sum(costs) if costs else None

    @property
    def compared_answers(self) -> int:
        """Calls that the reference server answered too."""
        return sum(call.same_answer is not None for call in self.calls)

    @property
    def different_answers(self) -> tuple[int, ...]:
        """Indices of the calls whose answer differs from the reference server's."""
        return tuple(call.index for call in self.calls if call.same_answer is False)

    def as_json(self) -> dict[str, Any]:
        return {
            "trace": self.name,
            "requests": len(self.calls),
            "skipped": self.skipped,
            "prompt_tokens": self.prompt_tokens,
            "prefilled_tokens": self.prefilled_tokens,
            "oracle_tokens": self.oracle_tokens,
            "ratio": self.ratio,
            "peer": self.peer_name,
            "peer_prefilled_tokens": self.peer_prefilled_tokens,
            "peer_ratio": self.peer_ratio,
            "compared_answers": self.compared_answers,
            "different_answers": list(self.different_answers),
            "wall_seconds": self.wall_seconds,
            "settings": self.settings,
            "calls": [asdict(call) for call in self.calls],
        }
