"""What a bench measured, and what follows from it. Pure.

Times are compared within one round only, server beside server: what slows the machine slows all of them. A figure over
rounds is the median of the rounds' own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorline.bench.standing.workloads import Role

CONTROL_SHARE = 0.5
"""Of the prompt of a control: what must be prefilled at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call to one server. None is what the server does not tell."""

    workload: str
    round: int
    step: int
    place: int
    """Of the call in its workload."""
    call: str
    role: Role
    server: str
    prompt_tokens: int
    prefilled_tokens: int | None
    oracle_tokens: int
    """What a perfect cache would have prefilled."""
    cut_oracle_tokens: int
    """The same of one that resumes only at cuts, as stateful models must."""
    ttft_ms: float
    prefill_ms: float | None
    tier: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One server in one workload. Tokens are of one round; None is what cannot be said."""

    workload: str
    server: str
    rounds: int
    calls: int
    prompt_tokens: int
    prefilled_tokens: int | None
    oracle_tokens: int
    oracle_ratio: float | None
    """Prefilled ÷ oracle."""
    warm_tokens: float | None
    """Length of a warm prompt."""
    delta_tokens: float | None
    """What was prefilled of one."""
    cold_ms: float | None
    """TTFT of the cold calls."""
    warm_ms: float | None
    """TTFT of the warm calls; of all calls where none is warm."""
    cold_to_warm: float | None
    """In the same round."""
    warm_to_prefill: float | None
    """TTFT of a warm call ÷ the time that its own prefill took."""
    to_ours: float | None
    """TTFT of a warm call ÷ Anchorline's of the same call in the same round."""


def summarise(samples: Sequence[Sample], *, ours: str, at_cuts: bool) -> list[Summary]:
    """One summary for each workload and server, in the order in which they come."""
    keys = dict.fromkeys((sample.workload, sample.server) for sample in samples)
    return [_summary(workload, server, samples, ours=ours, at_cuts=at_cuts) for workload, server in keys]


def _summary(workload: str, server: str, samples: Sequence[Sample], *, ours: str, at_cuts: bool) -> Summary:
    own = [sample for sample in samples if (sample.workload, sample.server) == (workload, server)]
    beside = {_place(sample): sample for sample in samples if (sample.workload, sample.server) == (workload, ours)}
    rounds = sorted({sample.round for sample in own})
    oracle_tokens = sum(sample.cut_oracle_tokens if at_cuts else sample.oracle_tokens for sample in own)
    prefilled_tokens = _sum([sample.prefilled_tokens for sample in own])
    warm = _warm(own)
    pairs = [(sample.ttft_ms, beside[_place(sample)].ttft_ms) for sample in warm if _place(sample) in beside]
    cold_ms = [_median(s.ttft_ms for s in own if s.round == number and s.role is Role.COLD) for number in rounds]
    warm_ms = [_median(sample.ttft_ms for sample in warm if sample.round == number) for number in rounds]
    return Summary(
        workload=workload,
        server=server,
        rounds=len(rounds),
        calls=len(own) // len(rounds),
        prompt_tokens=sum(sample.prompt_tokens for sample in own) // len(rounds),
        prefilled_tokens=None if prefilled_tokens is None else prefilled_tokens // len(rounds),
        oracle_tokens=oracle_tokens // len(rounds),
        oracle_ratio=None if prefilled_tokens is None else prefilled_tokens / oracle_tokens,
        warm_tokens=_median(sample.prompt_tokens for sample in warm),
        delta_tokens=_median(sample.prefilled_tokens for sample in warm),
        cold_ms=_median(cold_ms),
        warm_ms=_median(warm_ms),
        cold_to_warm=_median(_ratio(cold, warm) for cold, warm in zip(cold_ms, warm_ms, strict=True)),
        warm_to_prefill=_median(_ratio(sample.ttft_ms, sample.prefill_ms) for sample in warm),
        to_ours=_median(_ratio(*pair) for pair in pairs),
    )


def _warm(samples: Sequence[Sample]) -> list[Sample]:
    """The warm calls; all of them where none is."""
    return [sample for sample in samples if sample.role is Role.WARM] or list(samples)


def faults_of(samples: Iterable[Sample]) -> list[str]:
    """What no server may do, in words: restore what it never saw, above all a control."""
    together: dict[tuple[str, int, int, str], list[Sample]] = {}
    for sample in samples:
        if sample.prefilled_tokens is not None:
            together.setdefault((sample.workload, sample.round, sample.step, sample.server), []).append(sample)
    return [fault for step in together.values() if (fault := _fault(step)) is not None]


def _fault(step: Sequence[Sample]) -> str | None:
    """Of one step on one server. Which of its calls prefills what they share is the server's choice, so sums count."""
    first = step[0]
    prompt_tokens, oracle_tokens = sum(s.prompt_tokens for s in step), sum(s.oracle_tokens for s in step)
    prefilled_tokens = _sum([s.prefilled_tokens for s in step]) or 0
    calls = first.call if len(step) == 1 else f"{first.call} and {len(step) - 1} more"
    restored = f"{first.workload}, round {first.round + 1}, {calls}: {first.server} restored "
    restored += f"{prompt_tokens - prefilled_tokens} of {prompt_tokens} tokens"
    if prefilled_tokens < oracle_tokens:
        return f"{restored}, and had seen {prompt_tokens - oracle_tokens}"
    if first.role is Role.CONTROL and prefilled_tokens < CONTROL_SHARE * prompt_tokens:
        return f"{restored} behind a changed tool"
    return None


def _place(sample: Sample) -> tuple[int, int]:
    return sample.round, sample.place


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
