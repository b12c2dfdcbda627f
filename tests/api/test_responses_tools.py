"""Tools of the Responses protocol as chat tools."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.api.responses_tools import (
    ToolKind,
    ToolOrigin,
    chat_tool_choice,
    chat_tools,
    custom_arguments,
    custom_input,
)
from anchorline.errors import RequestError
from anchorline.limits import Limits

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ORIGINS = {
    "f": ToolOrigin(kind=ToolKind.FUNCTION, name="f", where="tools[0]"),
    "c": ToolOrigin(kind=ToolKind.CUSTOM, name="c", where="tools[1]"),
    "n__f": ToolOrigin(kind=ToolKind.FUNCTION, name="f", namespace="n", where="tools[2].tools[0]"),
}


def test_functions_custom_tools_and_namespaces_become_functions() -> None:
    made = chat_tools(
        [
            {"type": "function", "name": "f", "description": "does", "parameters": SCHEMA, "strict": False},
            {"type": "function", "name": "g", "parameters": None, "strict": True},
            {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
            {"type": "namespace", "name": "mcp__s__", "tools": [{"type": "custom", "name": "d"}]},
            {"type": "web_search", "external_web_access": True},
            {"type": "something_new"},
        ],
        limits=Limits(),
    )
    functions = {tool["function"]["name"]: tool["function"] for tool in made.tools}
    assert list(functions) == ["f", "g", "c", "n__f", "mcp__s__d"]
    assert functions["f"] == {"name": "f", "description": "does", "parameters": SCHEMA}
    assert functions["g"]["strict"] is True
    assert "lark grammar:\nstart: x" in functions["c"]["parameters"]["properties"]["input"]["description"]
    assert made.origins["n__f"] == ToolOrigin(
        kind=ToolKind.FUNCTION, name="f", namespace="n", where="tools[3].tools[0]"
    )
    assert made.origins["mcp__s__d"] == ToolOrigin(
        kind=ToolKind.CUSTOM, name="d", namespace="mcp__s__", where="tools[4].tools[0]"
    )


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([{"name": "f"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].name"),
        ([{"type": "function", "name": ""}], "tools[0].name"),
        ([{"type": "function", "name": "f", "parameters": []}], "tools[0].parameters"),
        ([{"type": "custom", "name": "f", "description": 1}], "tools[0].description"),
        ([{"type": "function", "name": "f"}, {"type": "custom", "name": "f"}], "tools[1].name"),
        ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
        ([{"type": "namespace", "name": "n", "tools": [1]}], "tools[0].tools[0]"),
        ([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
        (
            [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": str(i)} for i in range(3)]}],
            "tools",
        ),
    ],
)
def test_an_unusable_tool_is_named(tools: list[dict[str, Any]], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_tools(tools, limits=Limits(tools=2))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        (None, None),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "custom", "name": "c"}, {"type": "function", "function": {"name": "c"}}),
        ({"type": "function", "name": "f", "namespace": "n"}, {"type": "function", "function": {"name": "n__f"}}),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, "required"),
    ],
)
def test_tool_choice(choice: Any, made: Any) -> None:
    assert chat_tool_choice(choice, ORIGINS) == made


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ("any", "tool_choice"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "function", "name": "c"}, "tool_choice.name"),
        ({"type": "web_search_preview"}, "tool_choice.type"),
        ({"type": "allowed_tools"}, "tool_choice.mode"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(choice: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_tool_choice(choice, ORIGINS)
    assert caught.value.field == field


@given(st.text())
def test_a_custom_tools_text_survives_its_arguments(text: str) -> None:
    assert custom_input(custom_arguments(text)) == text


@pytest.mark.parametrize("arguments", ["", "{", '{"input": 1}', '{"other": "x"}', "[1]", "[" * 5000])
def test_arguments_of_another_shape_are_handed_over(arguments: str) -> None:
    assert custom_input(arguments) == arguments
