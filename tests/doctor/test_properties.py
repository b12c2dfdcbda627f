"""What holds for any traffic: appending is no fault, and what is charged is what a perfect cache prefills again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.bench.oracle import Oracle, as_tokens
from anchorline.doctor.comparison import TOOLS
from anchorline.doctor.layout import ToolOrder, lay_out
from anchorline.doctor.requests import read_request
from tests.doctor.traffic import FAULTS, Body, Fault, clean, diagnosis_of, side_call, trace_of

TEXT = st.sampled_from(["", "Yes.", "It is 14:05 now.", "It is 14:06 now.", "A longer text, said once more.", "7", "8"])
CALLS = st.lists(st.sampled_from(['{"a": 1, "b": 2}', '{"b":2,"a":1}', "{}"]), max_size=2)


@st.composite
def turns(draw: st.DrawFn) -> list[Body]:
    """One question with its answer, perhaps by way of calls."""
    messages: list[Body] = [{"role": draw(st.sampled_from(["user", "system"])), "content": draw(TEXT)}]
    arguments = draw(CALLS)
    names = [f"c{index}" for index in range(len(arguments))]
    answer: Body = {"role": "assistant", "content": draw(TEXT), "reasoning_content": draw(TEXT)}
    if arguments:
        pairs = zip(names, arguments, strict=True)
        answer["tool_calls"] = [{"id": id, "function": {"name": "read", "arguments": text}} for id, text in pairs]
    results = [{"role": "tool", "tool_call_id": id, "content": draw(TEXT)} for id in names]
    return [*messages, answer, *results]


@given(
    TEXT, TEXT, st.lists(turns(), min_size=1, max_size=6), st.sampled_from([ToolOrder.FIRST, ToolOrder.BEHIND_SYSTEM])
)
def test_appending_alone_is_never_a_fault(system: str, first: str, rounds: list[list[Body]], order: ToolOrder) -> None:
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": first}]
    bodies: list[Body] = [{"messages": list(messages)}]
    for turn in rounds:
        messages += turn
        bodies.append({"messages": list(messages)})
    assert diagnosis_of(bodies, order=order).findings == ()


def prefilled(bodies: list[Body], order: ToolOrder) -> int:
    """What a perfect cache prefills, with a token for each character of a prompt made of the parts in their order."""
    oracle = Oracle()
    requests = [read_request(each, place) for place, each in enumerate(trace_of(bodies).requests)]
    for layout in lay_out(requests, order):
        parts = [
            "".join(tool.text for tool in layout.request.tools) if part == TOOLS else layout.request.messages[part].text
            for part in layout.parts
        ]
        oracle.cost(as_tokens([ord(character) for character in "".join(parts)]))
    return oracle.total_tokens


A_FEW_WORDS = 60
"""Characters."""
IN_THE_HEAD = [fault for fault in FAULTS if fault.part <= 0 and fault.plant is not side_call]


@pytest.mark.parametrize("order", [ToolOrder.FIRST, ToolOrder.BEHIND_SYSTEM])
@pytest.mark.parametrize("fault", IN_THE_HEAD, ids=str)
def test_what_is_charged_is_prefilled_again(fault: Fault, order: ToolOrder) -> None:
    """Apart from what changed itself, and from how changed parts happen to begin."""
    bodies = clean()
    fault.plant(bodies)
    lost = sum(finding.lost_tokens for finding in diagnosis_of(bodies, order=order).findings)
    again = prefilled(bodies, order) - prefilled(clean(), order)
    assert abs(again - lost) <= A_FEW_WORDS * len(bodies)
