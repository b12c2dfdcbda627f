"""The tools of ``POST /v1/responses``, brought into the form of chat tools and back.

A custom tool becomes a function with one string, ``input``; a namespace's tools become functions with the
namespace in front of their name. Tools that only OpenAI's servers can run are left out. What the prompt shows
depends on each tool alone, so that adding one does not rename another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from anchorline.api.decode import json_type
from anchorline.errors import RequestError
from anchorline.limits import Limits

TOOL_CHOICES = ("none", "auto", "required")
CUSTOM_ARGUMENT = "input"
"""The one argument of a custom tool's function."""

_SEPARATOR = "__"


class ToolKind(StrEnum):
    FUNCTION = "function"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOrigin:
    """What a chat tool was in the request."""

    kind: ToolKind
    name: str
    namespace: str | None = None
    where: str
    """Its field: ``tools[2]``, or ``tools[2].tools[0]`` in a namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTools:
    """Tools as chat has them, and what each of them was."""

    tools: list[dict[str, Any]]
    origins: Mapping[str, ToolOrigin]
    """By the name that the model sees."""


def flat_name(name: str, namespace: str | None) -> str:
    """The name that the model sees."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith(_SEPARATOR) else f"{namespace}{_SEPARATOR}{name}"


def chat_tools(tools: Sequence[Mapping[str, Any]], *, limits: Limits) -> ChatTools:
    """The functions among ``tools``. Raises RequestError naming the tool that cannot be used."""
    made: list[dict[str, Any]] = []
    origins: dict[str, ToolOrigin] = {}
    for where, tool, namespace in _callable_tools(tools):
        name = _text(tool.get("name"), f"{where}.name")
        kind = ToolKind(tool["type"])
        shown = flat_name(name, namespace)
        if shown in origins:
            raise RequestError(f"{where}.name: there are two tools named {shown[:200]!r}", field=f"{where}.name")
        origins[shown] = ToolOrigin(kind=kind, name=name, namespace=namespace, where=where)
        made.append(_function(tool, shown, where) if kind is ToolKind.FUNCTION else _custom(tool, shown, where))
        if len(made) > limits.tools:
            raise RequestError(f"tools: at most {limits.tools} are allowed (--max-tools)", field="tools")
    return ChatTools(tools=made, origins=origins)


def chat_tool_choice(
    choice: str | Mapping[str, Any] | None, origins: Mapping[str, ToolOrigin]
) -> str | dict[str, Any] | None:
    """``tool_choice`` as chat has it. Raises RequestError for a tool that is not there to be chosen."""
    if choice is None:
        return None
    if isinstance(choice, str):
        return _mode(choice, "tool_choice")
    kind = choice.get("type")
    if kind == "allowed_tools":
        return _mode(choice.get("mode"), "tool_choice.mode")
    if kind not in tuple(ToolKind):
        raise RequestError(
            'tool_choice.type must be "function", "custom" or "allowed_tools"; other tools are not run here',
            field="tool_choice.type",
            code="unsupported_value",
        )
    name = _text(choice.get("name"), "tool_choice.name")
    namespace = choice.get("namespace")
    shown = flat_name(name, namespace if isinstance(namespace, str) else None)
    origin = origins.get(shown)
    if origin is None or origin.kind != kind:
        raise RequestError("tool_choice.name is not among the tools", field="tool_choice.name")
    return {"type": "function", "function": {"name": shown}}


def custom_arguments(text: str) -> str:
    """The arguments of a custom tool's function, for the text that the tool was given."""
    return json.dumps({CUSTOM_ARGUMENT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The text for a custom tool; arguments of another shape are handed over as they are."""
    try:
        found = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = found.get(CUSTOM_ARGUMENT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def _callable_tools(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any], str | None]]:
    """(where, tool, namespace) of the functions and custom tools."""
    kinds = tuple(ToolKind)
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        kind = _text(tool.get("type"), f"{where}.type")
        if kind in kinds:
            yield where, tool, None
        elif kind == "namespace":
            namespace = _text(tool.get("name"), f"{where}.name")
            inner = tool.get("tools")
            if not isinstance(inner, list):
                raise _wrong(f"{where}.tools", "an array", inner)
            for position, member in enumerate(inner):
                if not isinstance(member, dict):
                    raise _wrong(f"{where}.tools[{position}]", "an object", member)
                if member.get("type") in kinds:
                    yield f"{where}.tools[{position}]", member, namespace


def _function(tool: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise _wrong(f"{where}.parameters", "an object", parameters)
    function = _named(tool, name, where)
    function["parameters"] = {"type": "object", "properties": {}} if parameters is None else parameters
    if tool.get("strict") is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def _custom(tool: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    argument = {"type": "string", "description": _custom_format(tool.get("format"))}
    function = _named(tool, name, where)
    function["parameters"] = {
        "type": "object",
        "properties": {CUSTOM_ARGUMENT: argument},
        "required": [CUSTOM_ARGUMENT],
    }
    return {"type": "function", "function": function}


def _custom_format(given: object) -> str:
    if isinstance(given, dict) and isinstance(given.get("definition"), str):
        return f"Text that matches this {given.get('syntax', 'lark')} grammar:\n{given['definition']}"
    return "The text for the tool."


def _named(tool: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    description = tool.get("description")
    if description is None:
        return {"name": name}
    if not isinstance(description, str):
        raise _wrong(f"{where}.description", "a string", description)
    return {"name": name, "description": description}


def _mode(mode: object, field: str) -> str:
    if mode not in TOOL_CHOICES:
        raise RequestError(f"{field} must be one of {', '.join(TOOL_CHOICES)}, or name a tool", field=field)
    assert isinstance(mode, str)
    return mode


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(field, "a string, not empty", value)
    return value


def _wrong(field: str, wanted: str, value: object) -> RequestError:
    found = "an empty one" if value == "" else json_type(value)
    return RequestError(f"{field} must be {wanted}, not {found}", field=field, code="invalid_type")
