"""Input items to chat messages."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.api.responses_input import chat_messages, input_items, seal_reasoning, unseal_reasoning
from anchorline.errors import RequestError


def messages(given: Any, *, instructions: str | None = None) -> list[dict[str, Any]]:
    counter = itertools.count(1)
    items = input_items(given, new_id=lambda: str(next(counter)))
    return chat_messages(items, first=0, instructions=instructions)


def call(name: str, arguments: str = "{}", **members: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"id-{name}", "name": name, "arguments": arguments} | members


def output(name: str, text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"id-{name}", "output": text}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def test_a_string_is_what_the_user_says() -> None:
    assert messages("hi", instructions="be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]


def test_roles_stay_where_they_are() -> None:
    given = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]},
        {"type": "message", "role": "system", "content": "d"},
    ]
    assert messages(given) == [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": "b\nc"},
        {"role": "system", "content": "d"},
    ]


def test_a_run_of_the_assistants_items_is_one_message() -> None:
    given = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        assistant("I look."),
        call("ls", '{"path": "."}'),
        call("pwd"),
        output("pwd", "/"),
        output("ls", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
        assistant("Done."),
    ]
    first, pwd, ls, last = messages(given)
    assert first == {
        "role": "assistant",
        "reasoning_content": "hm",
        "content": "I look.",
        "tool_calls": [
            {"id": "id-ls", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}},
            {"id": "id-pwd", "type": "function", "function": {"name": "pwd", "arguments": "{}"}},
        ],
    }
    assert pwd == {"role": "tool", "tool_call_id": "id-pwd", "content": "/"}
    assert ls == {"role": "tool", "tool_call_id": "id-ls", "content": "a\nb"}
    assert last == {"role": "assistant", "content": "Done."}


def test_calls_of_custom_and_namespaced_tools_and_of_the_clients_own() -> None:
    given = [
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'say "hi"'},
        call("send", namespace="mail"),
        {"type": "local_shell_call", "id": "l", "call_id": "s", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
        {"type": "local_shell_call_output", "id": "s", "output": "a"},
    ]
    turn, patched, listed = messages(given)
    assert [c["function"] for c in turn["tool_calls"]] == [
        {"name": "patch", "arguments": '{"input": "say \\"hi\\""}'},
        {"name": "mail__send", "arguments": "{}"},
        {"name": "local_shell", "arguments": '{"type": "exec", "command": ["ls"]}'},
    ]
    assert patched == {"role": "tool", "tool_call_id": "c", "content": "ok"}
    assert listed == {"role": "tool", "tool_call_id": "s", "content": "a"}


def test_the_model_is_told_of_an_image_that_its_tool_gave_back() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    _, result = messages([call("view"), output("view", [{"type": "input_text", "text": "a.png"}, image])])
    assert result["content"] == "a.png\n[an image, which this model cannot see]"


@pytest.mark.parametrize("kind", ["web_search_call", "compaction", "mcp_list_tools", "something_new"])
def test_items_that_only_openai_understands_are_left_out(kind: str) -> None:
    assert messages([{"type": kind, "id": "x"}, {"role": "user", "content": "hi"}]) == [
        {"role": "user", "content": "hi"}
    ]


@given(st.text())
def test_sealed_reasoning_comes_back(text: str) -> None:
    assert unseal_reasoning(seal_reasoning(text)) == text


@given(st.text())
def test_what_others_have_encrypted_is_not_ours(text: str) -> None:
    assert unseal_reasoning(text) is None
    unseal_reasoning(seal_reasoning("") + text)  # whatever stands behind the mark, nothing is raised
    assert unseal_reasoning(seal_reasoning("x") + "!") is None


def test_reasoning_is_taken_from_where_most_of_it_is() -> None:
    summary = [{"type": "summary_text", "text": "short"}]
    content = [{"type": "reasoning_text", "text": "long"}]

    def reasoning(**members: Any) -> Any:
        (message,) = messages([{"type": "reasoning", "id": "r", "summary": [], **members}, assistant("x")])
        return message.get("reasoning_content")

    assert reasoning(summary=summary, content=content, encrypted_content=seal_reasoning("whole")) == "whole"
    assert reasoning(summary=summary, content=content, encrypted_content="theirs") == "long"
    assert reasoning(summary=summary, content=None, encrypted_content="theirs") == "short"
    assert reasoning() is None


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "message", "role": "wizard", "content": "x"}, "input[1].role"),
        ({"role": "user", "content": 5}, "input[1].content"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[1].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text"),
        ({"role": "user", "content": ["x"]}, "input[1].content[0]"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[1].name"),
        ({"type": "function_call", "name": "f", "arguments": {}, "call_id": "c"}, "input[1].arguments"),
        ({"type": "function_call_output", "output": "x"}, "input[1].call_id"),
        ({"type": 5}, "input[1].type"),
    ],
)
def test_an_unusable_part_is_named(item: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        messages([{"role": "user", "content": "hi"}, item])
    assert caught.value.field == field


def test_kept_items_have_ids_and_parts() -> None:
    items = input_items(
        [{"role": "user", "content": "hi"}, {"type": "message", "id": "m", "role": "user"}], new_id=lambda: "7"
    )
    assert items[0] == {
        "type": "message",
        "id": "msg_7",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
    }
    assert items[1]["id"] == "m"
