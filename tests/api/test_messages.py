"""Messages requests: brought into the form of chat, checked, and the same however a client marks them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.api.messages import MessagesCall, in_the_words_of_messages, parse_count_tokens, parse_messages
from anchorline.api.messages_content import convert_conversation
from anchorline.api.messages_thinking import signature
from anchorline.api.options import ApiContext
from anchorline.errors import RequestError
from anchorline.limits import Limits
from tests.api.support import CONTEXT

USER = {"role": "user", "content": "hi"}
WIDE = dataclasses.replace(CONTEXT, limits=Limits())
EPHEMERAL = {"type": "ephemeral"}
FIND: dict[str, Any] = {"name": "find", "description": "Finds.", "input_schema": {"type": "object"}}


def call(context: ApiContext = WIDE, /, **fields: Any) -> MessagesCall:
    body = {"max_tokens": 5, "messages": [USER]} | fields
    return parse_messages(json.dumps({k: v for k, v in body.items() if v is not ...}).encode(), context=context)


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def use(id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "find", "input": given}


def result(id: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **more}


def messages_of(*messages: dict[str, Any], system: Any = None) -> list[dict[str, Any]]:
    return convert_conversation(system, list(messages)).messages


def test_a_tool_round_as_chat_messages() -> None:
    converted = messages_of(
        {"role": "user", "content": [text("Find it."), text("Soon.")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Where?", "signature": "abc"},
                {"type": "redacted_thinking", "data": "x"},
                text("Looking."),
                use("b", z=1, a={"y": 2.5, "b": None}),
                use("a"),
            ],
        },
        {
            "role": "user",
            "content": [
                result("a", content=[text("one"), {"type": "tool_reference", "tool_name": "list"}]),
                result("b", content="no such file", is_error=True),
                text("And now?"),
            ],
        },
        {"role": "system", "content": [text("Be brief.")]},
        {"role": "assistant", "content": "It is"},
        system=[text("You help."), text("Kindly.")],
    )
    assert converted == [
        {"role": "system", "content": "You help.\nKindly."},
        {"role": "user", "content": "Find it.\nSoon."},
        {
            "role": "assistant",
            "content": "Looking.",
            "reasoning_content": "Where?",
            "tool_calls": [
                {
                    "id": "b",
                    "type": "function",
                    "function": {"name": "find", "arguments": '{"z": 1, "a": {"y": 2.5, "b": null}}'},
                },
                {"id": "a", "type": "function", "function": {"name": "find", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "Error: no such file"},
        {"role": "tool", "tool_call_id": "a", "content": "one\nlist"},
        {"role": "user", "content": "And now?"},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "It is"},
    ]


def test_results_of_unknown_calls_come_last_in_their_order() -> None:
    converted = messages_of(
        {"role": "assistant", "content": [use("a"), use("b")]},
        {"role": "user", "content": [result("y"), result("x"), result("b"), result("a")]},
    )
    assert [message["tool_call_id"] for message in converted[1:]] == ["a", "b", "y", "x"]


def test_an_error_that_says_so_is_not_marked_twice() -> None:
    (converted,) = messages_of({"role": "user", "content": [result("a", content="Error: gone", is_error=True)]})
    assert converted["content"] == "Error: gone"


def test_thinking_that_was_not_shown_comes_back_from_its_signature() -> None:
    hidden = {"type": "thinking", "thinking": "", "signature": signature("Where?")}
    foreign = {"type": "thinking", "thinking": "", "signature": "Ym9ndXM="}
    assert messages_of({"role": "assistant", "content": [hidden]})[0]["reasoning_content"] == "Where?"
    assert "reasoning_content" not in messages_of({"role": "assistant", "content": [foreign]})[0]


HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=abc;"


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (None, None),
        ("", None),
        ([], None),
        ("You help.", "You help."),
        ([text(HEADER), text("You help.")], "You help."),
        ([text(HEADER)], None),
        (HEADER, None),
        (f"{HEADER}\nYou help.", "You help."),
        ([text("You help."), text(HEADER)], f"You help.\n{HEADER}"),
        ([text(f"See {HEADER}")], f"See {HEADER}"),
    ],
)
def test_only_a_leading_billing_header_is_dropped(system: Any, expected: str | None) -> None:
    first = messages_of(USER, system=system)[0]
    assert first == (USER if expected is None else {"role": "system", "content": expected})


def test_a_billing_header_outside_the_system_field_stays() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": HEADER},
        {"role": "user", "content": [text(HEADER)]},
    ]
    assert [message["content"] for message in messages_of(*messages)] == [HEADER, HEADER]


WORDS = st.text(alphabet="ab \n", min_size=1, max_size=6)
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": st.lists(st.builds(text, WORDS), min_size=1, max_size=3)}
    )
    | st.fixed_dictionaries(
        {"role": st.just("system"), "content": st.lists(st.builds(text, WORDS), min_size=1, max_size=1)}
    )
    | st.fixed_dictionaries(
        {
            "role": st.just("user"),
            "content": st.lists(
                st.builds(lambda words: result("a", content=[text(words)]), WORDS), min_size=1, max_size=2
            ),
        }
    )
    | st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.lists(st.builds(text, WORDS) | st.just(use("a", x=1)), max_size=3)}
    ),
    min_size=1,
    max_size=5,
)


def remarked(turns: list[dict[str, Any]], flips: Callable[[], bool]) -> list[dict[str, Any]]:
    """The same conversation with ``cache_control`` elsewhere and single text blocks as strings."""

    def blocks(given: list[dict[str, Any]]) -> Any:
        if len(given) == 1 and given[0]["type"] == "text" and flips():
            return given[0]["text"]
        made = []
        for block in given:
            changed = block | ({"cache_control": EPHEMERAL} if flips() else {})
            if block["type"] == "tool_result":
                changed["content"] = blocks(block["content"])
            made.append(changed)
        return made

    return [turn | {"content": blocks(turn["content"])} for turn in turns]


@given(turns=TURNS, data=st.data())
def test_marks_and_strings_do_not_change_the_messages(turns: list[dict[str, Any]], data: st.DataObject) -> None:
    other = remarked(copy.deepcopy(turns), lambda: data.draw(st.booleans()))
    assert messages_of(*other, system="s") == messages_of(*turns, system=[text("s", cache_control=EPHEMERAL)])


def test_tools_become_functions_and_those_without_a_schema_are_left_out() -> None:
    tools = [
        FIND | {"cache_control": EPHEMERAL, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "custom", "name": "list", "input_schema": {"type": "object"}, "strict": True},
    ]
    assert call(tools=tools).chat.prompt.tools == [
        {
            "type": "function",
            "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object"}},
        },
        {"type": "function", "function": {"name": "list", "parameters": {"type": "object"}, "strict": True}},
    ]
    assert call(tools=tools[1:3]).chat.prompt.tools is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": kind, "disable_parallel_tool_use": True}, "tools": [FIND]}
        for kind in ("auto", "any", "none")
    ]
    + [
        {"tool_choice": {"type": "tool", "name": "find"}, "tools": [FIND]},
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"thinking": {"type": "between_tools"}},
        {"stop_sequences": None},
        {"metadata": {"user_id": "x"}, "service_tier": "auto", "betas": ["x"], "container": None, "speed": "fast"},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"model": None, "inference_geo": "eu", "mcp_servers": [], "diagnostics": None},
        {"output_config": {"effort": None, "task_budget": {"type": "tokens"}}},
    ],
)
def test_fields_that_are_accepted(fields: dict[str, Any]) -> None:
    assert call(**fields).chat.options.max_tokens == 5


def test_options_under_anthropics_names() -> None:
    options = call(
        max_tokens=128_000, stop_sequences=["END"], stream=True, temperature=0.5, top_k=3, top_p=0.9, seed=7
    ).chat.options
    assert (options.max_tokens, options.stop, options.stream, options.choices) == (128_000, ("END",), True, 1)
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.5, 3, 0.9, 7)


def test_thinking_and_effort_reach_the_template() -> None:
    plain, off = call().chat, call(thinking={"type": "disabled"}).chat
    assert (plain.prompt.template_kwargs, plain.prompt.effort, plain.reasoning_budget_tokens) == (None, None, None)
    assert (off.prompt.template_kwargs or {})["enable_thinking"] is False
    on = call(thinking={"type": "enabled", "budget_tokens": 2048}, output_config={"effort": "max"}).chat
    assert (on.prompt.template_kwargs or {})["enable_thinking"] is True
    assert (on.prompt.effort, on.reasoning_budget_tokens) == ("max", 2048)


def test_a_trailing_assistant_message_is_continued() -> None:
    assert call(messages=[USER, {"role": "assistant", "content": "It is"}]).chat.prompt.continue_final


def test_the_text_of_thinking_may_be_left_out() -> None:
    assert call(thinking={"type": "enabled", "display": "summarized"}).shape.shows_thinking
    assert not call(thinking={"type": "adaptive", "display": "omitted"}).shape.shows_thinking


def test_zero_tokens_warm() -> None:
    warm = call(max_tokens=0)
    assert (warm.shape.warms, warm.chat.options.max_tokens) == (True, 1)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
DEEP = [{"role": "user", "content": [text("a"), result("t", content=[text("b"), IMAGE])]}]


@pytest.mark.parametrize(
    ("fields", "field", "part"),
    [
        ({"max_tokens": ...}, "max_tokens", "is required"),
        ({"max_tokens": None}, "max_tokens", "is required"),
        ({"max_tokens": -1}, "max_tokens", "between 0"),
        ({"max_tokens": "5"}, "max_tokens", "not a string"),
        ({"messages": ...}, "messages", "is required"),
        ({"messages": [], "system": "s"}, "messages", "at least one"),
        ({"messages": [USER, {"role": "developer", "content": "x"}]}, "messages[1].role", "known roles"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role", "known roles"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "not null"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "an object"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "a string"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type", "no vision"),
        ({"messages": DEEP}, "messages[0].content[1].content[1].type", "no vision"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type", "text"),
        ({"messages": [{"role": "user", "content": [use("a")]}]}, "messages[0].content[0].type", "tool_result"),
        ({"messages": [{"role": "assistant", "content": [result("a")]}]}, "messages[0].content[0].type", "tool_use"),
        ({"messages": [{"role": "user", "content": [{"type": {}}]}]}, "messages[0].content[0].type", "a string"),
        ({"messages": [{"role": "system", "content": [result("a")]}]}, "messages[0].content[0].type", "known types"),
        (
            {"messages": [{"role": "assistant", "content": [use("a") | {"input": "{}"}]}]},
            "messages[0].content[0].input",
            "an object",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
            "a string",
        ),
        ({"system": [text("a"), IMAGE]}, "system[1].type", "no vision"),
        ({"system": {"type": "text"}}, "system", "a string or an array"),
        ({"tools": [FIND, {"name": "x"}]}, "tools[1].input_schema", "an object"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name", "a string"),
        ({"tools": [FIND | {"description": 1}]}, "tools[0].description", "a string"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [FIND]}, "tool_choice.name", "not among"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "no tools"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type", "one of"),
        ({"thinking": {"type": "on"}}, "thinking.type", "one of"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "output_config.effort must be one of"),
        ({"output_config": {"effort": 3}}, "output_config.effort", "a string"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens", "an integer"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type", "json_schema"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", "an object"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema", "an object"),
        ({"stop_sequences": [""]}, "stop_sequences[0]", "stop_sequences[0] must not be empty"),
        ({"stop_sequences": ["x" * 2000]}, "stop_sequences[0]", "--max-stop-bytes"),
        ({"temperature": -1}, "temperature", "between 0"),
    ],
)
def test_what_is_refused_names_its_field(fields: dict[str, Any], field: str, part: str) -> None:
    with pytest.raises(RequestError) as refused:
        call(**fields)
    assert refused.value.field == field
    assert part in str(refused.value)


def test_input_of_any_depth_is_taken_or_refused() -> None:
    """At some depth a body can still be decoded, but no more be written."""
    for depth in (100, *range(900, 1050)):
        messages = '[{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": %s}]}]'
        nested = messages % ('{"x": ' + "[" * depth + "]" * depth + "}")
        with contextlib.suppress(RequestError):
            parse_messages(f'{{"max_tokens": 1, "messages": {nested}}}'.encode(), context=WIDE)


def test_messages_and_tools_are_bounded() -> None:
    with pytest.raises(RequestError, match="--max-messages"):
        call(CONTEXT, messages=[USER] * 4)
    with pytest.raises(RequestError, match="--max-tools"):
        call(CONTEXT, tools=[FIND | {"name": f"f{n}"} for n in range(3)])


def test_errors_of_a_chat_completion_are_told_in_the_words_of_messages() -> None:
    path = "response_format.json_schema.schema.properties.x"
    with pytest.raises(RequestError) as told, in_the_words_of_messages():
        raise RequestError(f"{path}: no such type", field=path, code="c")
    assert told.value.field == "output_config.format.schema.properties.x"
    assert (str(told.value), told.value.code) == ("output_config.format.schema.properties.x: no such type", "c")
    path = "tools[1].function.parameters.properties.x"
    with pytest.raises(RequestError) as tool, in_the_words_of_messages((0, 3)):
        raise RequestError(f"{path}: no such type", field=path)
    assert str(tool.value) == f"{tool.value.field}: no such type" == "tools[3].input_schema.properties.x: no such type"
    with pytest.raises(RequestError) as other, in_the_words_of_messages():
        raise RequestError("stopped", field="stopped")
    assert other.value.field == "stopped"


def test_counting_needs_no_max_tokens_and_renders_what_a_call_renders() -> None:
    fields = {"messages": [USER], "system": "s", "tools": [FIND], "thinking": {"type": "disabled"}}
    counted = parse_count_tokens(json.dumps(fields).encode(), limits=WIDE.limits)
    assert counted == call(**fields).chat.prompt
