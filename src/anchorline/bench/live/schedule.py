"""When the calls of a replay may be sent, decided from the times in its traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anchorline.bench.due import Due
from anchorline.bench.trace import Trace, TraceRequest, ended_before

AS_RECORDED = 1.0
AT_ONCE = math.inf
"""The pace at which no time passes between calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall(Due):
    """One call and when it is due: ``gap_seconds`` is what a person or a tool took when it was recorded.

    ``earliest_seconds`` is 0 but where no end of an earlier call was recorded.
    """

    trace: str
    index: int
    """Place in its trace."""
    request: TraceRequest


def plan_calls(traces: Sequence[Trace], *, pace: float, overlapping: bool) -> list[PlannedCall]:
    """The calls of ``traces``, which run side by side, ``pace`` times as fast as they were recorded.

    A call waits for those of its trace that had been answered when it was sent; unless ``overlapping``, for the one
    before it at least. Calls of different traces never wait for each other.
    """
    calls: list[PlannedCall] = []
    for trace in traces:
        first = len(calls)
        for index, request in enumerate(trace.requests):
            earlier = _earlier(trace.requests, index, overlapping=overlapping)
            calls.append(_planned(trace, index, request, earlier, first=first, pace=pace))
    return calls


def _earlier(requests: Sequence[TraceRequest], index: int, *, overlapping: bool) -> Sequence[int]:
    """The calls that call ``index`` waits for."""
    if not overlapping:
        return range(max(0, index - 1), index)
    return list(ended_before(requests, index)) if math.isfinite(requests[index].end_seconds) else ()


def _planned(
    trace: Trace, index: int, request: TraceRequest, earlier: Sequence[int], *, first: int, pace: float
) -> PlannedCall:
    began = trace.requests[0].arrival_seconds
    ends = [trace.requests[place].end_seconds for place in earlier]
    timed = all(math.isfinite(end) for end in ends)
    since = max(ends, default=began) if timed else request.arrival_seconds
    return PlannedCall(
        trace=trace.name,
        index=index,
        request=request,
        after=tuple(first + place for place in earlier),
        gap_seconds=max(0.0, request.arrival_seconds - since) / pace,
        earliest_seconds=0.0 if timed else max(0.0, request.arrival_seconds - began) / pace,
    )
