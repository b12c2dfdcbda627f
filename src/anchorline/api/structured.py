"""What a request asks of the form of its reply: response_format, grammars, forced and strict tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from anchorline.api.decode import json_type
from anchorline.api.sampling import SamplingFields
from anchorline.constraint.spec import (
    Answer,
    Choices,
    ConstraintSpec,
    ForcedCalls,
    Grammar,
    JsonSchema,
    OfferedCalls,
    Regex,
    Tool,
)
from anchorline.errors import RequestError
from anchorline.output.format import CallMode

_ANY_OBJECT = {"type": "object"}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_FORMATS = ("text", "json_object", "json_schema")


class ConstraintFields(SamplingFields, kw_only=True):
    """The fields of both completion endpoints that say what the text must be; at most one may be given.

    ``response_format`` is OpenAI's; ``json_schema`` and ``grammar`` are llama-server's, the rest vLLM's.
    """

    response_format: dict[str, Any] | None = None
    json_schema: dict[str, Any] | bool | None = None
    grammar: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None


def answer_of(body: ConstraintFields) -> Answer | None:
    """What the text of the reply must be, or None when it is free. Raises RequestError naming the field."""
    found: Answer | None = None
    for name, read in _READERS.items():
        value = getattr(body, name)
        answer = None if value is None or value == "" else read(value, name)
        if answer is None:
            continue
        if found is not None:
            raise RequestError(f"{name} and {found.field} exclude each other", field=name)
        found = answer
    return found


def response_format(value: Any, field: str) -> Answer | None:
    """OpenAI's ``response_format``, by whatever name a protocol has for it; None for plain text."""
    if not isinstance(value, dict):
        raise _wrong_type(field, "an object", value)
    kind = value.get("type")
    if kind not in _FORMATS:
        raise RequestError(
            f"{field}.type must be one of {', '.join(_FORMATS)}", field=f"{field}.type", code="unsupported_value"
        )
    if kind == "text":
        return None
    # llama-server puts the schema beside the type, also for json_object.
    holder: Any = value
    where = field
    if kind == "json_schema" and "schema" not in value:
        holder, where = value.get("json_schema"), f"{field}.json_schema"
        if not isinstance(holder, dict):
            raise _wrong_type(where, "an object", holder)
    schema = holder.get("schema")
    if schema is None and kind == "json_object":
        schema = _ANY_OBJECT
    return json_schema(schema, f"{where}.schema", strict=holder.get("strict") is True)


def json_schema(value: Any, field: str, *, strict: bool = True) -> JsonSchema:
    """A JSON schema, sent as such."""
    if not isinstance(value, dict | bool):
        raise _wrong_type(field, "a JSON schema", value)
    return JsonSchema(schema=value, field=field, strict=strict)


def chat_constraint(
    answer: Answer | None,
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    several: bool = True,
    parameters: str = "function.parameters",
) -> ConstraintSpec | None:
    """Everything asked of a chat's reply, or None when nothing is.

    Tools and choice are in OpenAI's shape and checked; ``several`` allows more than one call in a
    reply, and ``parameters`` is the protocol's path of a tool's schema, for messages. Calls that are
    forced leave no room for an answer.
    """
    if tool_choice is not None and call_mode(tool_choice) is CallMode.JSON:
        return ConstraintSpec(calls=_forced(tools or (), tool_choice, several=several, parameters=parameters))
    offered = None
    if tools and tool_choice != "none":
        offered = _offered(tools, several=several, parameters=parameters, answer=answer)
    return None if answer is None and offered is None else ConstraintSpec(answer=answer, calls=offered)


def call_mode(tool_choice: str | Mapping[str, Any] | None) -> CallMode:
    """Where the reply to such a choice holds calls."""
    if isinstance(tool_choice, Mapping) or tool_choice == "required":
        return CallMode.JSON
    return CallMode.NONE if tool_choice == "none" else CallMode.AUTO


def _forced(
    tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any], *, several: bool, parameters: str
) -> ForcedCalls:
    name = None if isinstance(choice, str) else choice["function"]["name"]
    chosen = tuple(
        Tool(name=tool["function"]["name"], arguments=_arguments(tool, f"tools[{index}].{parameters}"))
        for index, tool in enumerate(tools)
        if name is None or tool["function"]["name"] == name
    )
    if not chosen:
        raise RequestError("tool_choice forces a call, but there are no tools", field="tool_choice")
    return ForcedCalls(tools=chosen, field="tool_choice", several=several and name is None)


def _offered(
    tools: Sequence[Mapping[str, Any]], *, several: bool, parameters: str, answer: Answer | None
) -> OfferedCalls | None:
    """None when nothing is asked of calls that the model makes by itself."""
    if answer is None and several and not any(map(_is_strict, tools)):
        return None
    offered = []
    for index, tool in enumerate(tools):
        field = f"tools[{index}].{parameters}"
        free = JsonSchema(schema=_ANY_OBJECT, field=field, strict=False)
        arguments = _arguments(tool, field) if _is_strict(tool) else free
        offered.append(Tool(name=tool["function"]["name"], arguments=arguments))
    return OfferedCalls(tools=tuple(offered), field="tools", several=several)


def _arguments(tool: Mapping[str, Any], field: str) -> JsonSchema:
    parameters = tool["function"].get("parameters")
    if parameters is None:
        parameters = _NO_ARGUMENTS
    if not isinstance(parameters, dict):
        raise _wrong_type(field, "an object", parameters)
    return JsonSchema(schema=_ANY_OBJECT | parameters, field=field, strict=_is_strict(tool))


def _is_strict(tool: Mapping[str, Any]) -> bool:
    return tool["function"].get("strict") is True


def _json_text(value: Any, field: str) -> JsonSchema:
    """A schema that may be sent as JSON text."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value.encode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"{field} is not valid JSON: {error}", field=field) from error
    return json_schema(value, field)


def _regex(value: Any, field: str) -> Regex:
    return Regex(pattern=_text(value, field), field=field)


def _grammar(value: Any, field: str) -> Grammar:
    return Grammar(text=_text(value, field), field=field)


def _choice(value: Any, field: str) -> Choices:
    if not isinstance(value, list) or not value:
        raise RequestError(f"{field} must be a list of at least one string", field=field)
    return Choices(texts=tuple(_text(text, f"{field}[{index}]") for index, text in enumerate(value)), field=field)


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise _wrong_type(field, "a string", value)
    if not value:
        raise RequestError(f"{field} must not be empty", field=field)
    return value


def _structured_outputs(value: Any, field: str) -> Answer:
    """vLLM's object with one of several members."""
    given = [name for name in value if value[name] is not None]
    if len(given) != 1 or given[0] not in _MEMBERS:
        raise RequestError(f"{field} must have exactly one of {', '.join(_MEMBERS)}", field=field)
    (name,) = given
    return _MEMBERS[name](value[name], f"{field}.{name}")


_MEMBERS: dict[str, Callable[[Any, str], Answer]] = {
    "json": _json_text,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
_READERS: dict[str, Callable[[Any, str], Answer | None]] = {
    "response_format": response_format,
    "json_schema": json_schema,
    "grammar": _grammar,
    **{f"guided_{name}": read for name, read in _MEMBERS.items()},
    "structured_outputs": _structured_outputs,
}


def _wrong_type(field: str, wanted: str, value: Any) -> RequestError:
    return RequestError(f"{field} must be {wanted}, not {json_type(value)}", field=field, code="invalid_type")
