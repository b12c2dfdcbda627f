"""Traffic read as it comes is found to have what the whole trace has."""

from __future__ import annotations

from collections import Counter

import pytest

from anchorline.doctor.comparison import Kind
from anchorline.doctor.layout import ToolOrder
from anchorline.doctor.live import WINDOW_REQUESTS, LiveDiagnosis
from anchorline.errors import RequestError
from tests.doctor.traffic import (
    FAULTS,
    QUESTIONS,
    Body,
    Fault,
    clean,
    clock_in_system,
    conversation,
    diagnosis_of,
    side_call,
    trace_of,
)


def live() -> LiveDiagnosis:
    return LiveDiagnosis(count_tokens=len, order=ToolOrder.FIRST)


def totals_of(bodies: list[Body]) -> tuple[Counter[Kind], Counter[Kind]]:
    """(requests, tokens lost) by kind, as a diagnosis of the whole has them."""
    times: Counter[Kind] = Counter()
    lost: Counter[Kind] = Counter()
    for finding in diagnosis_of(bodies).findings:
        times[finding.kind] += len(finding.occurrences)
        lost[finding.kind] += finding.lost_tokens
    return times, lost


def taken(reader: LiveDiagnosis, bodies: list[Body]) -> tuple[Counter[Kind], Counter[Kind]]:
    for request in trace_of(bodies).requests:
        reader.take(request)
    totals = reader.totals()
    return (
        Counter({total.kind: total.requests for total in totals}),
        Counter({total.kind: total.lost_tokens for total in totals}),
    )


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_totals_are_those_of_the_whole_trace(fault: Fault) -> None:
    bodies = clean()
    fault.plant(bodies)
    assert taken(live(), bodies) == totals_of(bodies)


def test_a_fault_is_told_with_the_request_that_pays_for_it() -> None:
    bodies = clean()
    clock_in_system(bodies)
    reader = live()
    told = [[finding.kind for finding in reader.take(request)] for request in trace_of(bodies).requests]
    assert told == [[], *[[Kind.CLOCK]] * 5]


def test_of_long_traffic_only_a_window_is_held_and_nothing_is_counted_twice() -> None:
    bodies: list[Body] = []
    while len(bodies) <= 2 * WINDOW_REQUESTS:
        part = conversation(*(f"{question} (file {len(bodies)})" for question in QUESTIONS))
        clock_in_system(part)
        side_call(part)
        bodies += part
    reader = live()
    half = len(bodies) // 2
    taken(reader, bodies[:half])
    assert taken(reader, bodies[half:]) == totals_of(bodies)
    assert len(reader._traffic) <= WINDOW_REQUESTS


def test_a_call_that_cannot_be_read_is_named_and_not_counted() -> None:
    reader = live()
    with pytest.raises(RequestError, match="is no chat call"):
        reader.take(trace_of(clean(), path="/v1/completions").requests[0])
    assert reader.requests == 0
