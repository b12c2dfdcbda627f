"""When calls are due: by the times between them, and by the replies that they waited for."""

from __future__ import annotations

import pytest

from anchorline.bench.live.blocks import NOT_RECORDED
from anchorline.bench.live.schedule import AS_RECORDED, AT_ONCE, PlannedCall, plan_calls
from anchorline.bench.trace import CHAT_PATH, Trace
from tests.bench.live.bodies import chat, trace_of

# call 0 |----|      call 1      |---------|
# call 2                             |--|          call 3               |-
TIMES = [(10.0, 12.0), (15.0, 20.0), (17.0, 18.0), (21.0, 22.0)]


@pytest.fixture
def trace() -> Trace:
    return trace_of(CHAT_PATH, *[chat("hello")] * 4, times=TIMES)


def plan(*traces: Trace, pace: float = AS_RECORDED, overlapping: bool = False) -> list[PlannedCall]:
    return plan_calls(traces, pace=pace, overlapping=overlapping)


def test_one_after_the_other_with_the_gaps_between_reply_and_call(trace: Trace) -> None:
    calls = plan(trace)
    assert [call.after for call in calls] == [(), (0,), (1,), (2,)]
    assert [call.gap_seconds for call in calls] == [0, 3, 0, 3]


def test_calls_that_overlapped_wait_for_what_they_had_waited_for(trace: Trace) -> None:
    calls = plan(trace, overlapping=True)
    assert [call.after for call in calls] == [(), (0,), (0,), (0, 1, 2)]
    assert [call.gap_seconds for call in calls] == [0, 3, 5, 1]


@pytest.mark.parametrize(("pace", "gaps"), [(2.0, [0, 1.5, 0, 1.5]), (AT_ONCE, [0, 0, 0, 0])])
def test_a_pace_shortens_the_gaps(trace: Trace, pace: float, gaps: list[float]) -> None:
    assert [call.gap_seconds for call in plan(trace, pace=pace)] == gaps


def test_traces_side_by_side_do_not_wait_for_each_other(trace: Trace) -> None:
    calls = plan(trace, trace)
    assert [call.after for call in calls[4:]] == [(), (4,), (5,), (6,)]
    assert calls[4].gap_seconds == 0


def test_where_ends_were_not_recorded_calls_are_due_by_the_clock() -> None:
    times = [(10.0, NOT_RECORDED), (11.0, NOT_RECORDED), (15.0, NOT_RECORDED)]
    trace = trace_of(CHAT_PATH, *[chat("hello")] * 3, times=times)
    calls = plan(trace, pace=2.0, overlapping=True)
    assert [(call.after, call.gap_seconds) for call in calls] == [((), 0), ((), 0.5), ((), 2.5)]
    calls = plan(trace, pace=2.0)
    assert [(call.after, call.gap_seconds) for call in calls] == [((), 0), ((0,), 0), ((1,), 0)]
    assert [call.earliest_seconds for call in calls] == [0, 0.5, 2.5]
