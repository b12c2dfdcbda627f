"""Tools and tool choice of the Messages protocol as chat completions have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anchorline.api.decode import json_type
from anchorline.errors import RequestError

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """As in a chat completion; None leaves it to the default."""

    choice: str | dict[str, Any] | None = None
    parallel: bool | None = None


def convert_tools(tools: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Functions of the tools that have an input schema, by their places in ``tools``.

    Those without one are known by their type alone (``web_search_20250305``, ``bash_20250124``): a
    server runs them, or a model was trained on them. They are left out.
    """
    functions: dict[int, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        schema = tool.get("input_schema")
        if schema is None and tool.get("type") not in (None, "custom"):
            continue
        if not isinstance(schema, dict):
            raise RequestError(
                f"{where}.input_schema must be an object, not {json_type(schema)}",
                field=f"{where}.input_schema",
                code="invalid_type",
            )
        functions[index] = {"type": "function", "function": _function(tool, schema, where)}
    return functions


def convert_tool_choice(given: Mapping[str, Any] | None, *, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """``auto``, ``any``, ``none`` or one of ``tools`` (converted). Raises RequestError."""
    if given is None:
        return ToolChoice()
    parallel = False if given.get("disable_parallel_tool_use") is True else None
    kind = given.get("type")
    names = [tool["function"]["name"] for tool in tools]
    if kind == "tool":
        name = given.get("name")
        if not isinstance(name, str) or name not in names:
            raise RequestError("tool_choice.name is not among the tools that can be called", field="tool_choice.name")
        return ToolChoice(choice={"type": "function", "function": {"name": name}}, parallel=parallel)
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise RequestError(f"tool_choice.type must be one of {', '.join(_CHOICES)}, tool", field="tool_choice.type")
    if kind == "any" and not names:
        raise RequestError("tool_choice.type is any, but there are no tools that can be called", field="tool_choice")
    return ToolChoice(choice=_CHOICES[kind], parallel=parallel)


def _function(tool: Mapping[str, Any], schema: dict[str, Any], where: str) -> dict[str, Any]:
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.name must be a string, not empty", field=f"{where}.name")
    function: dict[str, Any] = {"name": name}
    if description is not None:
        if not isinstance(description, str):
            raise RequestError(
                f"{where}.description must be a string, not {json_type(description)}",
                field=f"{where}.description",
                code="invalid_type",
            )
        function["description"] = description
    function["parameters"] = schema
    if tool.get("strict") is True:
        function["strict"] = True
    return function
