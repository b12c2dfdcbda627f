"""System prompt and messages of the Messages protocol as chat messages.

The same conversation always gives the same messages: a string and one text block are alike, where
``cache_control`` stands does not matter, and parallel tool results come in the order of their calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from anchorline.api.decode import json_type
from anchorline.api.messages_thinking import hidden_thinking
from anchorline.errors import RequestError
from anchorline.prompt.messages import in_call_order
from anchorline.prompt.volatile import BILLING_HEADER

_NOT_RENDERED = frozenset(
    {
        "redacted_thinking",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
    }
)
"""Blocks that only Anthropic's servers write and read; a conversation begun there may hold them."""

_REFUSED = {
    "image": "the model has no vision",
    "document": "the model reads text only; send the document's text as a text block",
}

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Chat messages, and which of the request's they were made from."""

    messages: list[Message]
    ends: tuple[int, ...]
    """How many of them there are up to the end of each of the request's messages."""


def convert_conversation(system: str | list[Any] | None, messages: list[dict[str, Any]]) -> Conversation:
    """Chat messages with plain text in them. Raises RequestError naming the part that cannot be used."""
    converted: list[Message] = []
    text = _system_text(system)
    if text:
        converted.append({"role": "system", "content": text})
    ends: list[int] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            converted.append(_assistant(content, f"{where}.content"))
        elif role == "user":
            converted += _user(content, f"{where}.content")
        elif role == "system":
            converted.append({"role": "system", "content": _joined_text(content, f"{where}.content")})
        else:
            shown = repr(role)[:40]
            raise RequestError(
                f"{where}.role is {shown}; known roles are user, assistant, system", field=f"{where}.role"
            )
        ends.append(len(converted))
    return Conversation(messages=in_call_order(converted), ends=tuple(ends))


def _system_text(system: str | list[Any] | None) -> str:
    """The system prompt without a leading billing header.

    A header block goes as a whole. A prompt sent as one string keeps what follows the header's line.
    """
    if system is None:
        return ""
    if isinstance(system, str):
        return system.partition("\n")[2] if system.startswith(BILLING_HEADER) else system
    texts = [_block_text(block, where) for block, where in _blocks(system, "system")]
    return "\n".join(texts[1:] if texts and texts[0].startswith(BILLING_HEADER) else texts)


def _user(content: Any, where: str) -> list[Message]:
    """Tool results, then the user's own text."""
    results: list[Message] = []
    texts: list[str] = []
    for block, at in _blocks(content, where):
        kind = block["type"]
        if kind == "tool_result":
            results.append(_tool_result(block, at))
        elif kind not in _NOT_RENDERED:
            texts.append(_block_text(block, at, known="text, tool_result"))
    if results and not texts:
        return results
    return [*results, {"role": "user", "content": "\n".join(texts)}]


def _assistant(content: Any, where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, at in _blocks(content, where):
        kind = block["type"]
        if kind == "thinking":
            thoughts.append(_thinking(block, at))
        elif kind == "tool_use":
            calls.append(_tool_use(block, at))
        elif kind not in _NOT_RENDERED:
            texts.append(_block_text(block, at, known="text, thinking, tool_use"))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _thinking(block: Mapping[str, Any], where: str) -> str:
    """What was thought; from the signature where the client was not shown it."""
    return _text_of(block, "thinking", where) or hidden_thinking(block.get("signature"))


def _tool_use(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise RequestError(
            f"{where}.input must be an object, not {json_type(given)}", field=f"{where}.input", code="invalid_type"
        )
    try:
        arguments = json.dumps(given, ensure_ascii=False)
    except RecursionError as error:
        raise RequestError(f"{where}.input is nested too deeply", field=f"{where}.input") from error
    function = {"name": _text_of(block, "name", where), "arguments": arguments}
    return {"id": _text_of(block, "id", where), "type": "function", "function": function}


def _tool_result(block: Mapping[str, Any], where: str) -> Message:
    """A failed result says so, as chat messages have no mark for it."""
    content = block.get("content")
    parts = () if content is None else _blocks(content, f"{where}.content")
    text = "\n".join(_result_text(part, at) for part, at in parts)
    if block.get("is_error") is True and text[:5].lower() != "error":
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _text_of(block, "tool_use_id", where), "content": text}


def _result_text(block: Mapping[str, Any], where: str) -> str:
    """A reference to a tool that was found becomes its name; the tool itself is in the prompt already."""
    if block["type"] == "tool_reference":
        return _text_of(block, "tool_name", where)
    return _block_text(block, where, known="text, tool_reference")


def _joined_text(content: Any, where: str) -> str:
    return "\n".join(_block_text(block, at) for block, at in _blocks(content, where))


def _blocks(content: Any, where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """(block, its path); a string is one text block. Every block has a type, which is a string."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, where
        return
    if not isinstance(content, list):
        raise RequestError(
            f"{where} must be a string or a list of blocks, not {json_type(content)}", field=where, code="invalid_type"
        )
    for index, block in enumerate(content):
        at = f"{where}[{index}]"
        if not isinstance(block, dict):
            raise RequestError(f"{at} must be an object, not {json_type(block)}", field=at, code="invalid_type")
        _text_of(block, "type", at)
        yield block, at


def _block_text(block: Mapping[str, Any], where: str, *, known: str = "text") -> str:
    kind = block["type"]
    if kind == "text":
        return _text_of(block, "text", where)
    raise RequestError(
        f"{where}.type is {repr(kind)[:60]}: {_REFUSED.get(kind, f'known types here are {known}')}",
        field=f"{where}.type",
        code="unsupported_content",
    )


def _text_of(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise RequestError(
            f"{where}.{name} must be a string, not {json_type(value)}", field=f"{where}.{name}", code="invalid_type"
        )
    return value
