"""Each fault that is planted in a clean conversation is found once, at its place, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from anchorline.doctor.comparison import Kind
from anchorline.doctor.layout import ToolOrder
from anchorline.doctor.requests import read_request
from tests.doctor.traffic import (
    FAULTS,
    QUESTIONS,
    SYSTEM,
    Body,
    Fault,
    arguments_reserialised,
    clean,
    clock_in_system,
    conversation,
    diagnosis_of,
    history_rewritten,
    reasoning_dropped,
    results_cleared,
    side_call,
    tools_flap,
    trace_of,
)

ENDS = (("Why does the parser fail?", "14:05"), ("Are all the tests run?", "14:06"))


def fault_of(plant: Callable[[list[Body]], None]) -> Fault:
    return next(fault for fault in FAULTS if fault.plant is plant)


def kinds_of(bodies: list[Body]) -> list[Kind]:
    return [finding.kind for finding in diagnosis_of(bodies).findings]


def test_a_clean_conversation_has_nothing() -> None:
    diagnosis = diagnosis_of(clean())
    assert diagnosis.requests == 6
    assert diagnosis.findings == ()
    assert diagnosis.unread == ()


def test_conversations_on_one_head_that_take_turns_have_nothing() -> None:
    second = conversation("Fix bug 12", "Fix bug 13")
    bodies = [body for pair in zip(clean(), [*second, *second[:2]], strict=True) for body in pair]
    assert kinds_of(bodies) == []


def test_questions_that_differ_in_a_number_hold_no_counter() -> None:
    bodies = [conversation(f"Mend bug {number}, please.")[0] for number in (12, 13)]
    assert kinds_of(bodies) == []


def test_what_changes_at_the_end_of_a_head_costs_a_new_conversation_nothing() -> None:
    bodies = [conversation(question, system=f"{SYSTEM}It is {time}")[0] for question, time in ENDS]
    assert kinds_of(bodies) == []


def test_a_fork_at_the_tip_that_is_thrown_away_is_no_fault() -> None:
    bodies = clean()
    review = {**bodies[3], "messages": [*bodies[3]["messages"], {"role": "user", "content": "What is worth keeping?"}]}
    assert kinds_of([*bodies[:4], review, *bodies[4:]]) == []


def test_an_agent_of_another_kind_that_goes_on_is_no_fault() -> None:
    other = conversation("Watch the logs.", "And now?", system="Other words altogether, for another agent.\n")
    for body in other:
        body["tools"] = body["tools"][2:]
    assert kinds_of([*clean(), *other]) == []


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_found_once_at_its_place(fault: Fault) -> None:
    bodies = clean()
    fault.plant(bodies)
    findings = diagnosis_of(bodies).findings
    assert [finding.kind for finding in findings] == [fault.kind]
    first = findings[0].occurrences[0]
    place = (first.request, first.place.part, first.place.byte, first.place.field)
    assert place == (fault.request, fault.part, fault.byte, fault.field)
    assert findings[0].lost_tokens > 0


def far_apart(one: Fault, other: Fault) -> bool:
    """Whether the faults lie in different parts; two in one stretch of history are one change of it."""
    return one.kind is not other.kind and min(one.part, other.part) <= 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(pair for pair in combinations(FAULTS, 2) if far_apart(*pair)),
        (fault_of(reasoning_dropped), fault_of(arguments_reserialised)),
        (fault_of(reasoning_dropped), fault_of(results_cleared)),
        (fault_of(arguments_reserialised), fault_of(results_cleared)),
        (fault_of(results_cleared), fault_of(history_rewritten)),
    ],
    ids=str,
)
def test_of_two_planted_faults_both_are_found(one: Fault, other: Fault) -> None:
    bodies = clean()
    one.plant(bodies)
    other.plant(bodies)
    assert sorted(kinds_of(bodies)) == sorted((one.kind, other.kind))


def test_a_system_prompt_may_be_nothing_but_a_clock() -> None:
    bodies = conversation(*QUESTIONS[:2], system="")
    for place, body in enumerate(bodies):
        body["messages"][0]["content"] = f"14:0{place}:11"
    assert kinds_of(bodies) == [Kind.CLOCK]


def test_both_sides_are_shown() -> None:
    bodies = clean()
    clock_in_system(bodies)
    first = diagnosis_of(bodies).findings[0].occurrences[0]
    assert (first.earlier, first.place.line, first.before, first.after) == (0, 2, "14:00:11", "14:01:11")


def test_what_flaps_costs_only_what_no_earlier_prompt_had() -> None:
    """The third request finds tools, system prompt and question of the first again, but not the second's turn."""
    bodies = clean()
    tools_flap(bodies)
    lost = [occurrence.lost_tokens for occurrence in diagnosis_of(bodies).findings[0].occurrences]
    turn = read_request(trace_of(bodies).requests[1], 1).messages[2:]
    assert lost[:2] == [len(SYSTEM) + len(QUESTIONS[0]), sum(len(message.text) for message in turn)]


def test_a_billing_header_that_is_dropped_costs_nothing() -> None:
    bodies = []
    for place, body in enumerate(conversation("Hello there, who are you?")[:1] * 2):
        header = {"type": "text", "text": f"x-anthropic-billing-header: cch=ab{place}cd;"}
        system = [header, {"type": "text", "text": SYSTEM}]
        bodies.append({"system": system, "messages": body["messages"][1:], "max_tokens": 5})
    (finding,) = diagnosis_of(bodies, path="/v1/messages?beta=true").findings
    assert (finding.kind, finding.lost_tokens, len(finding.occurrences)) == (Kind.BILLING_HEADER, 0, 2)


def test_a_template_that_writes_tools_behind_the_history_pays_for_each_question() -> None:
    (finding,) = diagnosis_of(clean(), order=ToolOrder.BEFORE_LAST_QUESTION).findings
    assert finding.kind is Kind.TOOLS_BEHIND_HISTORY
    assert [(each.request, each.place.part) for each in finding.occurrences] == [(2, 1), (4, 5)]


def test_tools_behind_the_system_prompt_are_lost_with_it() -> None:
    bodies = clean()
    clock_in_system(bodies)
    in_front, behind = (
        diagnosis_of(bodies, order=order).findings[0].occurrences[0].lost_tokens
        for order in (ToolOrder.FIRST, ToolOrder.BEHIND_SYSTEM)
    )
    tools = diagnosis_of(bodies[:1]).prompt_tokens - sum(len(each["content"]) for each in bodies[0]["messages"])
    assert behind - in_front == tools


def test_tools_that_are_left_out_once_are_found_though_they_stand_nowhere() -> None:
    bodies = clean()
    for body in bodies[3:]:
        del body["tools"]
    (finding,) = diagnosis_of(bodies).findings
    assert finding.kind is Kind.TOOLS_CHANGED
    assert [each.request for each in finding.occurrences] == [3]


def test_a_side_call_costs_all_of_its_prompt_the_first_time() -> None:
    bodies = clean()
    side_call(bodies)
    (finding,) = diagnosis_of([*bodies, bodies[1]]).findings
    prompt = sum(len(message["content"]) for message in bodies[1]["messages"])
    assert [each.lost_tokens for each in finding.occurrences] == [prompt, 0]
