"""What of a chat request reaches the prompt and the parser: continuing, thinking, calls, and what is put up with."""

from __future__ import annotations

from typing import Any

import pytest

from anchorline.api.thinking import REASONING_FORMATS, TEMPLATE_KWARGS
from anchorline.errors import RequestError
from anchorline.output.format import CallMode
from anchorline.prompt.effort import EFFORTS
from tests.api.support import MESSAGES, chat

BEGUN = [*MESSAGES, {"role": "assistant", "content": "So"}]
CALLING = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]}]
TOOL = {"type": "function", "function": {"name": "look"}}


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"messages": MESSAGES}, (False, True)),
        ({"messages": BEGUN}, (True, True)),
        ({"messages": CALLING}, (False, True)),
        ({"messages": BEGUN, "add_generation_prompt": True}, (True, True)),
        ({"messages": BEGUN, "add_generation_prompt": False}, (False, False)),
        ({"messages": BEGUN, "continue_final_message": False}, (False, True)),
        ({"messages": BEGUN, "continue_final_message": True}, (True, True)),
        ({"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False}, (True, False)),
    ],
)
def test_a_trailing_assistant_message_is_continued_unless_told_otherwise(
    fields: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    prompt = chat(**fields).prompt
    assert (prompt.continue_final, prompt.add_generation_prompt) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": MESSAGES},
        {"messages": CALLING},
        {"messages": BEGUN, "add_generation_prompt": True},
    ],
)
def test_what_cannot_be_continued_is_refused(fields: dict[str, Any]) -> None:
    assert refused(continue_final_message=True, **fields).field == "continue_final_message"


def test_template_options_come_from_a_list_that_a_refusal_shows() -> None:
    given = dict.fromkeys(TEMPLATE_KWARGS, "x")
    assert chat(chat_template_kwargs=given).prompt.template_kwargs == given
    error = refused(chat_template_kwargs={"enable_thinking": True, "messages_": []})
    assert error.field == "chat_template_kwargs"
    assert "messages_" in str(error)
    assert all(name in str(error) for name in TEMPLATE_KWARGS)


def test_enable_thinking_is_a_template_option_that_an_explicit_one_overrides() -> None:
    assert chat().prompt.template_kwargs is None
    assert chat(enable_thinking=False).prompt.template_kwargs == {"enable_thinking": False, "thinking": False}
    both = chat(enable_thinking=False, chat_template_kwargs={"thinking": True}).prompt.template_kwargs
    assert both == {"enable_thinking": False, "thinking": True}


def test_efforts_are_openais() -> None:
    assert [chat(reasoning_effort=effort).prompt.effort for effort in EFFORTS] == list(EFFORTS)
    assert chat(reasoning_effort=None).prompt.effort is None
    error = refused(reasoning_effort="enormous")
    assert error.field == "reasoning_effort"
    assert "minimal, low, medium, high" in str(error)


def test_reasoning_formats_are_llama_servers() -> None:
    assert [chat(reasoning_format=name).split_reasoning for name in REASONING_FORMATS] == [True, True, True, False]
    assert refused(reasoning_format="yaml").field == "reasoning_format"


@pytest.mark.parametrize("name", ["thinking_budget", "reasoning_budget", "thinking_budget_tokens"])
def test_budgets_are_whole_numbers_and_minus_one_is_none(name: str) -> None:
    budgets: list[Any] = [None, -1, 0, 512]
    assert [chat(**{name: value}).reasoning_budget_tokens for value in budgets] == [None, None, 0, 512]
    for value in (-2, 1.5, "1", True):
        assert refused(**{name: value}).field == name


def test_calls_are_looked_for_unless_none_are_wanted() -> None:
    tools = [TOOL]
    assert chat(tools=tools).calls is CallMode.AUTO
    assert chat(tools=tools, tool_choice="auto").calls is CallMode.AUTO
    assert chat(tools=tools, tool_choice="none").calls is CallMode.NONE


def test_what_has_no_effect_here_is_put_up_with() -> None:
    harmless = {
        "user": "u",
        "safety_identifier": "s",
        "service_tier": "flex",
        "store": True,
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "verbosity": "low",
        "modalities": ["text"],
        "prediction": {"type": "content", "content": "x"},
        "web_search_options": {},
        "stream_options": {"include_usage": False, "include_obfuscation": False},
        "something_new": [1],
    }
    assert chat(**harmless) == chat()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "look"}]}, "functions"),
        ({"tools": [{"type": "custom", "custom": {"name": "look"}}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "look", "parameters": []}}]}, "tools[0].function.parameters"),
        ({"n": 5}, "n"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(fields: dict[str, Any], named: str) -> None:
    assert refused(**fields).field == named
