"""What bodies share as bytes, where a server tells no token ids."""

from __future__ import annotations

from typing import Any

import pytest

from anchorline.bench.live.shown import SYMBOL_BYTES, shown
from anchorline.bench.oracle import common_prefix

CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"id": 7}'}}


def text_of(body: dict[str, Any]) -> str:
    return bytes(shown(body)[0]).decode().rstrip("\0")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}),
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}),
        ({"role": "assistant", "tool_calls": [CALL]}, {"role": "assistant", "content": None, "tool_calls": [CALL]}),
        ({"role": "assistant", "tool_calls": [CALL]}, {"role": "assistant", "tool_calls": [{**CALL, "id": "other"}]}),
        (
            {"type": "function_call_output", "call_id": "a", "output": "x"},
            {"type": "function_call_output", "call_id": "b", "output": "x"},
        ),
    ],
    ids=["parts", "marks", "no content", "call ids", "item ids"],
)
def test_what_templates_do_not_show_makes_no_difference(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert text_of({"messages": [left]}) == text_of({"messages": [right]})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "ho"}),
        ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}),
        ({"type": "tool_use", "name": "n", "input": {"id": 1}}, {"type": "tool_use", "name": "n", "input": {"id": 2}}),
    ],
    ids=["text", "role", "arguments called id"],
)
def test_what_templates_show_makes_one(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert text_of({"messages": [left]}) != text_of({"messages": [right]})


def test_a_body_that_goes_on_shares_all_of_the_one_before() -> None:
    first = {"role": "user", "content": "list the files"}
    tools = [{"type": "function", "function": {"name": "read"}}]
    before, cuts = shown({"tools": tools, "messages": [first]})
    after, _ = shown({"tools": tools, "messages": [first, {"role": "user", "content": "and now?"}]})
    assert common_prefix(before, after) >= cuts[-1] >= before.size - 1


def test_cuts_are_the_ends_of_head_and_messages() -> None:
    body = {"system": "s" * 40, "messages": [{"role": "user", "content": "m" * 39}, {"role": "user", "content": "n"}]}
    symbols, cuts = shown(body)
    ends = [len("s" * 40 + "\n"), len("s" * 40 + "\n" + "user\n" + "m" * 39 + "\n")]
    assert cuts[:2] == tuple(end // SYMBOL_BYTES for end in ends)
    assert cuts[2] <= symbols.size


def test_a_leading_billing_header_is_not_shown() -> None:
    header = {"type": "text", "text": "x-anthropic-billing-header: a"}
    assert text_of({"system": [header, {"type": "text", "text": "be brief"}]}) == text_of({"system": "be brief"})
