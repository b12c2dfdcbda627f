"""OpenAI messages become what templates expect, or an error that names the part."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from anchorline.errors import RequestError
from anchorline.prompt.messages import (
    merge_system,
    normalise_messages,
    number_calls,
    parse_arguments,
    split_parallel_calls,
)
from tests.prompt.support import assistant, result, system, user


def one(message: Any) -> dict[str, Any]:
    return normalise_messages([message])[0]


@pytest.mark.parametrize("content", [None, "", []])
def test_no_content_is_empty_text(content: Any) -> None:
    assert one({"role": "assistant", "content": content}) == {"role": "assistant", "content": ""}
    assert one({"role": "assistant"}) == {"role": "assistant", "content": ""}


def test_text_parts_are_joined_by_lines() -> None:
    parts = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "input_text", "text": "b"},
        "c",
        {"type": "refusal", "refusal": "d"},
    ]
    assert one({"role": "user", "content": parts})["content"] == "a\nb\nc\nd"


@pytest.mark.parametrize(("role", "shown"), [("developer", "system"), ("function", "tool"), ("user", "user")])
def test_roles(role: str, shown: str) -> None:
    assert one({"role": role, "content": "x"})["role"] == shown


def test_metadata_does_not_reach_the_template() -> None:
    message = {"role": "user", "content": "x", "id": "1", "cache_control": {}, "metadata": {}, "tool_calls": [1]}
    assert one(message) == {"role": "user", "content": "x"}


def test_tool_calls_keep_what_templates_read() -> None:
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a": 1}', "x": 1}}
    assert one({"role": "assistant", "tool_calls": [call]})["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]


def test_arguments_given_as_an_object_or_not_at_all() -> None:
    calls = [{"function": {"name": "f", "arguments": {"é": [1]}}}, {"function": {"name": "g"}}]
    normal = one({"role": "assistant", "tool_calls": calls})["tool_calls"]
    assert [call["function"]["arguments"] for call in normal] == ['{"é": [1]}', "{}"]


def test_the_old_function_call_is_a_tool_call() -> None:
    normal = one({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}})
    assert normal["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_under_one_name(key: str) -> None:
    assert one({"role": "assistant", key: "hm"})["reasoning_content"] == "hm"


def test_tool_results_keep_id_and_name() -> None:
    message = {"role": "tool", "content": "r", "tool_call_id": "c1", "name": "f"}
    assert one(message) == message


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("text", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "wizard", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "user", "content": ["a", {"type": "text"}]}, "messages[0].content[1].text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "file"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": "x", "name": 5}, "messages[0].name"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "reasoning_content": 5}, "messages[0].reasoning_content"),
        ({"role": "tool", "content": "r", "tool_call_id": 5}, "messages[0].tool_call_id"),
    ],
)
def test_errors_name_the_part(message: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalise_messages([message])
    assert caught.value.field == field


def test_an_unknown_role_names_the_known_ones_and_an_image_says_why() -> None:
    with pytest.raises(RequestError, match="system, developer, user, assistant, tool"):
        one({"role": "wizard", "content": "x"})
    with pytest.raises(RequestError, match="no vision"):
        one({"role": "user", "content": [{"type": "image_url"}]})


def test_no_messages_at_all() -> None:
    with pytest.raises(RequestError) as caught:
        normalise_messages([])
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": 1}', {"a": 1}), ("", {}), (" ", {}), ("[1]", "[1]"), ("not json", "not json"), ("[" * 100_000,) * 2],
)
def test_arguments_become_an_object_where_they_are_one(text: str, value: Any) -> None:
    assert parse_arguments(text) == value


def test_system_text_goes_in_front_of_the_first_user_message() -> None:
    merged = merge_system([system("a"), system("b"), user("c"), assistant("d"), system("e")])
    assert merged == [user("a\n\nb\n\nc"), assistant("d"), user("e")]
    assert merge_system([system("a"), assistant("d")]) == [user("a"), assistant("d")]
    assert merge_system([system(""), user("c")]) == [user("c")]
    assert merge_system([system("a")]) == [user("a")]


def test_parallel_calls_one_by_one_with_their_results() -> None:
    calls = assistant("text", ("f", "{}"), ("g", "{}"), ("h", "{}"))
    split = split_parallel_calls([user("u"), calls, result("of h", 2), result("of f", 0), user("v")])
    shown = [(m["role"], m["content"], [c["function"]["name"] for c in m.get("tool_calls", ())]) for m in split]
    assert shown == [
        ("user", "u", []),
        ("assistant", "text", ["f"]),
        ("tool", "of f", []),
        ("assistant", "", ["g"]),
        ("assistant", "", ["h"]),
        ("tool", "of h", []),
        ("user", "v", []),
    ]


def test_results_without_ids_answer_calls_in_order_and_none_is_lost() -> None:
    calls = assistant("", ("f", "{}"), ("g", "{}"))
    results = [{"role": "tool", "content": text} for text in ("1", "2", "3")]
    split = split_parallel_calls([calls, *results])
    assert [m["content"] for m in split] == ["", "1", "", "2", "3"]


def call(id: str, name: str = "f") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def calls_and_results(calls: list[str], results: list[str]) -> list[dict[str, Any]]:
    given: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    given.append({"role": "assistant", "content": None, "tool_calls": [call(id) for id in calls]})
    return given + [{"role": "tool", "content": f"r{id}", "tool_call_id": id} for id in results]


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        (["b", "a", "c"], ["ra", "rb", "rc"]),
        (["c", "b"], ["rb", "rc"]),
        (["x", "c", "a"], ["ra", "rc", "rx"]),
        (["a", "b", "a"], ["ra", "ra", "rb"]),
    ],
)
def test_results_of_parallel_calls_come_in_the_order_of_the_calls(results: list[str], shown: list[str]) -> None:
    messages = normalise_messages(calls_and_results(["a", "b", "c"], results))
    assert [message["content"] for message in messages[2:]] == shown


def test_results_are_sorted_within_their_own_turn() -> None:
    turn, following = calls_and_results(["a", "b"], ["b", "a"])[1:], calls_and_results(["b", "a"], ["a", "b"])
    messages = normalise_messages([{"role": "user", "content": "q"}, *turn, *following])
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["ra", "rb", "rb", "ra"]


def test_calls_are_numbered_in_order_of_appearance() -> None:
    messages = normalise_messages(
        [*calls_and_results(["x", "y"], ["y", "x", "lost"]), *calls_and_results(["x"], ["x"])]
    )
    numbered = number_calls(messages, lambda tool, count: f"{tool}:{count}")
    calls = [call["id"] for message in numbered for call in message.get("tool_calls", ())]
    assert calls == ["f:0", "f:1", "f:3"]
    results = [(m["content"], m["tool_call_id"]) for m in numbered if m["role"] == "tool"]
    assert results == [("rx", "f:0"), ("ry", "f:1"), ("rlost", "tool:2"), ("rx", "f:3")]
    assert messages[1]["tool_calls"][0]["id"] == "x"  # the given ones are left alone


def test_splitting_many_calls_takes_time_in_proportion_to_them() -> None:
    def work(count: int) -> int:
        ids = [str(number) for number in range(count)]
        messages = normalise_messages(calls_and_results(ids, ids[::-1]))
        seen = 0

        def count_calls(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal seen
            seen += event == "call"

        sys.setprofile(count_calls)
        try:
            split = split_parallel_calls(messages)
        finally:
            sys.setprofile(None)
        assert [m["content"] for m in split[2::2]] == [f"r{id}" for id in ids]
        return seen

    assert work(200) < 3 * work(100)
