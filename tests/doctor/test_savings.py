"""What the doctor says a rewrite would spare is what a perfect cache of the rewritten requests spares."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anchorline.doctor.layout import ToolOrder
from anchorline.doctor.requests import AgentRequest, read_request
from anchorline.doctor.savings import REWRITES, rewritten
from anchorline.doctor.traffic import Traffic
from tests.doctor.traffic import (
    Body,
    billing_header_in_chat,
    clean,
    clock_in_system,
    counter_in_system,
    date_words_in_system,
    diagnosis_of,
    id_in_system,
    memory_in_system,
    tool_keys_reordered,
    tools_reordered,
    trace_of,
)

Plant = Callable[[list[Body]], None]

FLOATED = (clock_in_system, date_words_in_system, counter_in_system, id_in_system, billing_header_in_chat)
SORTED = (tools_reordered, tool_keys_reordered)
MENDED = [*((plant, "--float-volatile") for plant in FLOATED), *((plant, "--canonical-tools") for plant in SORTED)]


def spoiled(plant: Plant) -> list[Body]:
    bodies = clean()
    plant(bodies)
    return bodies


def requests_of(bodies: list[Body]) -> tuple[AgentRequest, ...]:
    return tuple(read_request(each, place) for place, each in enumerate(trace_of(bodies).requests))


@pytest.mark.parametrize(("plant", "flag"), MENDED)
def test_the_rewrite_that_helps_is_named_with_what_it_spares(plant: Plant, flag: str) -> None:
    diagnosis = diagnosis_of(spoiled(plant))
    saved = {saving.flag: saving.tokens for saving in diagnosis.savings}
    lost = sum(finding.lost_tokens for finding in diagnosis.findings)
    assert 0.5 * lost < saved[flag] <= 1.5 * lost


@pytest.mark.parametrize(("plant", "flag"), MENDED)
def test_what_is_rewritten_has_no_fault_any_more(plant: Plant, flag: str) -> None:
    traffic = Traffic(count_tokens=len, order=ToolOrder.FIRST)
    for request in rewritten(requests_of(spoiled(plant)), REWRITES[flag]):
        traffic.take(request)
    assert traffic.findings() == ()


def test_a_rewrite_that_spares_nothing_is_not_named() -> None:
    for bodies in (clean(), spoiled(memory_in_system)):
        assert diagnosis_of(bodies).savings == ()


def test_a_rewrite_that_only_costs_says_so() -> None:
    """A time that never changes breaks nothing; moved, it is said again behind every question."""
    bodies = clean()
    for body in bodies:
        body["messages"][0]["content"] += "It is 14:05 now.\n"
    diagnosis = diagnosis_of(bodies)
    assert diagnosis.findings == ()
    (saving,) = diagnosis.savings
    assert saving.flag == "--float-volatile"
    assert saving.tokens < 0
