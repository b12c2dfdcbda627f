"""A salt parts the prompts of two runs at their front, and leaves those of one run as they were to each other."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from anchorline.bench.live.salt import salted
from anchorline.bench.live.shown import SYMBOL_BYTES, shown
from anchorline.bench.oracle import common_prefix
from anchorline.bench.trace import read_trace
from tests.bench.live.bodies import EVERY_PROTOCOL, Body, chat, messages, responses

RECORDED = Path(__file__).resolve().parents[4] / "shared" / "traces"
FRONT_BYTES = 160
"""What stands before the first description: brackets, keys, and the name of the first tool."""


def shared_bytes(left: Body, right: Body) -> int:
    return common_prefix(shown(left)[0], shown(right)[0]) * SYMBOL_BYTES


@pytest.mark.parametrize("make", [make for _, make in EVERY_PROTOCOL])
def test_two_salts_part_the_prompts_at_their_front(make: Any) -> None:
    body = make("list the files")
    assert shared_bytes(salted(body, "one"), salted(body, "two")) < FRONT_BYTES
    without_tools = {name: value for name, value in body.items() if name != "tools"}
    assert shared_bytes(salted(without_tools, "one"), salted(without_tools, "two")) < FRONT_BYTES


@pytest.mark.parametrize("make", [make for _, make in EVERY_PROTOCOL])
def test_under_one_salt_prompts_share_what_they_shared(make: Any) -> None:
    first, second = make("list the files"), make("list the files", "read one")
    marked = shared_bytes(salted(first, "salt"), salted(second, "salt"))
    assert marked >= shared_bytes(first, second)
    assert marked >= shown(salted(first, "salt"))[1][-1] * SYMBOL_BYTES


@pytest.mark.parametrize("make", [make for _, make in EVERY_PROTOCOL])
def test_the_recorded_body_is_left_alone(make: Any) -> None:
    body = make("list the files")
    before = copy.deepcopy(body)
    salted(body, "salt")
    assert body == before


def test_the_system_prompt_and_the_first_tool_are_marked() -> None:
    body = salted(chat("hello"), "salt")
    marked = [message for message in body["messages"] if message["content"].startswith("[salt] ")]
    assert marked == body["messages"][:1]
    described = [tool["function"]["description"] for tool in body["tools"]]
    assert [text.startswith("[salt] ") for text in described] == [True] + [False] * (len(described) - 1)


def test_a_billing_header_stays_the_leading_block() -> None:
    """The server drops it where it leads; behind a salt it would become a part of the prompt."""
    first, second = salted(messages("hello"), "salt")["system"]
    assert first == messages("hello")["system"][0]
    assert second["text"].startswith("[salt] ")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, {"messages": [{"role": "user", "content": "[s] hi"}]}),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "hi"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "[s] hi"}]}]},
        ),
        ({"input": "hi"}, {"input": "[s] hi"}),
        ({"system": "be brief", "messages": []}, {"system": "[s] be brief", "messages": []}),
        (
            {"tools": [{"type": "web_search"}, {"name": "a"}]},
            {"tools": [{"type": "web_search"}, {"name": "a", "description": "[s] "}]},
        ),
        ({"messages": []}, {"messages": []}),
    ],
)
def test_where_the_word_goes(body: Body, expected: Body) -> None:
    assert salted(body, "s") == expected


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")
@pytest.mark.parametrize("name", ["hermes-fanout", "claude-code", "codex", "opencode", "cline", "pi", "langgraph"])
def test_recorded_calls_are_parted_at_their_front(name: str) -> None:
    for request in read_trace(RECORDED / f"{name}.jsonl").requests:
        assert shared_bytes(salted(request.body, "one"), salted(request.body, "two")) < FRONT_BYTES


def test_responses_are_marked_in_their_instructions() -> None:
    body = salted(responses("hello"), "salt")
    assert body["instructions"].startswith("[salt] ")
    assert body["input"] == responses("hello")["input"]
