"""What fields become of a constraint, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from anchorline.api.structured import chat_constraint, json_schema
from anchorline.constraint.spec import (
    Choices,
    ConstraintSpec,
    ForcedCalls,
    Grammar,
    JsonSchema,
    OfferedCalls,
    Regex,
)
from anchorline.errors import RequestError
from anchorline.output.format import CallMode
from tests.api.support import chat, completion

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA} | function}


def answer(**fields: Any) -> Any:
    constraint = chat(**fields).constraint
    assert constraint == completion(**fields).constraint
    if constraint is None:
        return None
    assert constraint.calls is None
    return constraint.answer


def json_of(field: str, *, schema: Any = SCHEMA, strict: bool = False) -> JsonSchema:
    return JsonSchema(schema=schema, field=field, strict=strict)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "grammar": "", "json_schema": None, "guided_json": None}, None),
        (
            {"response_format": {"type": "json_object"}},
            json_of("response_format.schema", schema={"type": "object"}),
        ),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, json_of("response_format.schema")),
        ({"response_format": NAMED}, json_of("response_format.json_schema.schema")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}}},
            json_of("response_format.json_schema.schema", strict=True),
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA, "strict": True}},
            json_of("response_format.schema", strict=True),
        ),
        ({"json_schema": SCHEMA}, json_of("json_schema", strict=True)),
        ({"json_schema": {}}, json_of("json_schema", schema={}, strict=True)),
        ({"grammar": 'root ::= "a"'}, Grammar(text='root ::= "a"', field="grammar")),
        ({"guided_json": SCHEMA}, json_of("guided_json", strict=True)),
        ({"guided_json": '{"type": "object"}'}, json_of("guided_json", schema={"type": "object"}, strict=True)),
        ({"guided_regex": "a+"}, Regex(pattern="a+", field="guided_regex")),
        ({"guided_choice": ["a", "b"]}, Choices(texts=("a", "b"), field="guided_choice")),
        ({"guided_grammar": "start: A"}, Grammar(text="start: A", field="guided_grammar")),
        ({"structured_outputs": {"json": SCHEMA}}, json_of("structured_outputs.json", strict=True)),
        (
            {"structured_outputs": {"regex": "a+", "json": None}},
            Regex(pattern="a+", field="structured_outputs.regex"),
        ),
        (
            {"structured_outputs": {"choice": ["a"]}},
            Choices(texts=("a",), field="structured_outputs.choice"),
        ),
    ],
)
def test_answers(fields: dict[str, Any], expected: Any) -> None:
    assert answer(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "text, json_object, json_schema"),
        ({"response_format": {}}, "response_format.type", "must be one of"),
        ({"response_format": {"type": []}}, "response_format.type", "must be one of"),
        ({"response_format": "json"}, "response_format", "an object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "an object, not null"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
            "a JSON schema, not null",
        ),
        (
            {"response_format": {"type": "json_object", "schema": []}},
            "response_format.schema",
            "a JSON schema, not an array",
        ),
        ({"json_schema": 3}, "json_schema", "an object"),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_json": "3"}, "guided_json", "a JSON schema, not an integer"),
        ({"guided_choice": []}, "guided_choice", "at least one string"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]", "must not be empty"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of json, regex, choice, grammar"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex", "a string, not an integer"),
        ({"grammar": "start: A", "guided_regex": "a"}, "guided_regex", "grammar exclude each other"),
        ({"response_format": NAMED, "json_schema": {}}, "json_schema", "exclude each other"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        chat(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        ("auto", CallMode.AUTO),
        ("none", CallMode.NONE),
        ("required", CallMode.JSON),
        ({"type": "function", "function": {"name": "a"}}, CallMode.JSON),
    ],
)
def test_calls_are_looked_for_where_they_are_made(choice: Any, mode: CallMode) -> None:
    assert chat(tools=[tool("a")], tool_choice=choice).calls is mode


def test_required_calls_may_be_of_any_tool() -> None:
    constraint = chat(tools=[tool("a"), tool("b", strict=True)], tool_choice="required").constraint
    assert constraint is not None
    calls = constraint.calls
    assert isinstance(calls, ForcedCalls)
    assert [called.name for called in calls.tools] == ["a", "b"]
    assert calls.several
    assert calls.tools[1].arguments == json_of("tools[1].function.parameters", strict=True)


def test_a_named_call_is_one_of_one_tool() -> None:
    choice = {"type": "function", "function": {"name": "b"}}
    constraint = chat(tools=[tool("a"), tool("b")], tool_choice=choice, response_format=NAMED).constraint
    assert constraint is not None
    assert isinstance(constraint.calls, ForcedCalls)
    assert constraint.answer is None
    assert not constraint.calls.several
    (called,) = constraint.calls.tools
    assert called.arguments.field == "tools[1].function.parameters"


def test_no_parallel_calls_means_one() -> None:
    forced = chat(tools=[tool("a")], tool_choice="required", parallel_tool_calls=False).constraint
    assert forced is not None
    assert forced.calls is not None
    assert not forced.calls.several
    offered = chat(tools=[tool("a")], parallel_tool_calls=False).constraint
    assert offered is not None
    assert isinstance(offered.calls, OfferedCalls)
    assert not offered.calls.several


def test_offered_tools_are_constrained_only_where_something_is_asked() -> None:
    assert chat(tools=[tool("a")]).constraint is None
    assert chat(tools=[tool("a", strict=True)], tool_choice="none").constraint is None
    constraint = chat(tools=[tool("a"), tool("b", strict=True)], tool_choice="auto").constraint
    assert constraint is not None
    assert isinstance(constraint.calls, OfferedCalls)
    loose, strict = (called.arguments for called in constraint.calls.tools)
    assert (loose.schema, loose.strict) == ({"type": "object"}, False)
    assert (strict.schema, strict.strict) == (SCHEMA, True)


def test_an_answer_and_calls_may_both_be_possible() -> None:
    constraint = chat(tools=[tool("a")], response_format=NAMED).constraint
    assert constraint is not None
    assert constraint.answer is not None
    assert isinstance(constraint.calls, OfferedCalls)
    without = chat(tools=[tool("a")], response_format=NAMED, tool_choice="none").constraint
    assert without == ConstraintSpec(answer=constraint.answer)


def test_arguments_are_always_an_object() -> None:
    tools = [tool("none", parameters=None), tool("any", parameters={}), tool("some", parameters={"properties": {}})]
    constraint = chat_constraint(None, tools=tools, tool_choice="required")
    assert constraint is not None
    assert constraint.calls is not None
    schemas = [called.arguments.schema for called in constraint.calls.tools]
    assert schemas == [
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object"},
        {"type": "object", "properties": {}},
    ]
    with pytest.raises(RequestError, match="an object, not an array") as caught:
        chat_constraint(None, tools=[tool("a", parameters=[])], tool_choice="required")
    assert caught.value.field == "tools[0].function.parameters"


def test_another_protocols_names_are_used_in_messages() -> None:
    answered = json_schema(SCHEMA, "text.format.schema")
    constraint = chat_constraint(
        answered, tools=[tool("a", strict=True)], tool_choice="auto", parameters="input_schema"
    )
    assert constraint is not None
    assert constraint.calls is not None
    assert constraint.calls.tools[0].arguments.field == "tools[0].input_schema"
