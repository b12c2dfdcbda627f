"""A word at the front of every prompt of a run, so that no run finds in a server's cache what another one left there.

It stands in the system prompt and in the first tool, since a template may write either of them first. All calls of
a run get the same word, so what they share with each other stays as recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BILLING_HEADER = "x-anthropic-billing-header"
"""A leading block that begins like this never reaches a prompt (Claude Code sends one)."""


def salted(body: Mapping[str, Any], word: str) -> dict[str, Any]:
    """A copy of ``body``, of any protocol, with ``word`` in front; what it has no place for stays as it was."""
    mark = f"[{word}] "
    changed = dict(body)
    if isinstance(body.get("tools"), list):
        changed["tools"] = _salted_tools(body["tools"], mark)
    for name in ("system", "instructions", "messages", "input"):
        salted_text = _salted_text(body.get(name), mark)
        if salted_text is not None:
            changed[name] = salted_text
            break
    return changed


def _salted_text(value: Any, mark: str) -> str | list[Any] | None:
    """``value`` with ``mark`` before its first text: a string, parts, or messages with content. None without text."""
    if isinstance(value, str) and value:
        return mark + value
    for place, item in enumerate(value if isinstance(value, list) else ()):
        changed = _salted_item(item, mark)
        if changed is not None:
            return [*value[:place], changed, *value[place + 1 :]]
    return None


def _salted_item(item: Any, mark: str) -> dict[str, Any] | None:
    if not isinstance(item, Mapping):
        return None
    for name in ("text", "content"):
        value = item.get(name)
        if isinstance(value, str) and value.startswith(BILLING_HEADER):
            return None
        changed = _salted_text(value, mark)
        if changed is not None:
            return {**item, name: changed}
    return None


def _salted_tools(tools: Sequence[Any], mark: str) -> list[Any]:
    """The first tool that is described as a function, marked in its description."""
    for place, tool in enumerate(tools):
        changed = _salted_tool(tool, mark)
        if changed is not None:
            return [*tools[:place], changed, *tools[place + 1 :]]
    return list(tools)


def _salted_tool(tool: Any, mark: str) -> dict[str, Any] | None:
    if not isinstance(tool, Mapping):
        return None
    if isinstance(tool.get("function"), Mapping):
        inner = _salted_tool(tool["function"], mark)
        return None if inner is None else {**tool, "function": inner}
    if "name" not in tool or not isinstance(tool.get("description", ""), str):
        return None
    return {**tool, "description": mark + tool.get("description", "")}
