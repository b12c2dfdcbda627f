"""The input items of ``POST /v1/responses``, as they are kept and as chat messages.

OpenAI spreads one assistant turn over several items: reasoning, messages, calls. Here every run of such items
becomes one assistant message again, the very one that the model wrote, so that a conversation that comes back
renders as it did before.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anchorline.api.decode import json_type
from anchorline.api.responses_tools import custom_arguments, flat_name
from anchorline.errors import RequestError

Item = dict[str, Any]

_SEAL = "anchorline-reasoning:"
"""In front of reasoning that travels as ``encrypted_content``; it is encoded, not secret."""

_ROLES = ("user", "assistant", "system", "developer")
_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_UNSEEN_IMAGE = {"type": "input_text", "text": "[an image, which this model cannot see]"}
_CLIENT_CALLS = {"local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation"}
"""Calls that the client carries out, and the member that holds their arguments."""
_CLIENT_OUTPUTS = frozenset(f"{kind}_output" for kind in _CLIENT_CALLS)


def seal_reasoning(text: str) -> str:
    """Reasoning as ``encrypted_content``, for clients that keep nothing else of it."""
    return _SEAL + base64.b64encode(text.encode()).decode()


def unseal_reasoning(sealed: str) -> str | None:
    """The reasoning in our ``encrypted_content``; None for another server's."""
    if not sealed.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(sealed[len(_SEAL) :], validate=True).decode()
    except (binascii.Error, ValueError):  # also bytes that are no UTF-8
        return None


def input_items(given: str | Sequence[Mapping[str, Any]], *, new_id: Callable[[], str]) -> list[Item]:
    """The items as they are kept: each with type, id and status, message content as parts.

    Members that are not known here are kept as they were sent. Raises RequestError for a type that is none.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_item(item, f"input[{index}]", new_id) for index, item in enumerate(given)]


def _item(given: Mapping[str, Any], where: str, new_id: Callable[[], str]) -> Item:
    kind = given.get("type")
    if kind is None:
        kind = "message" if "role" in given else "item_reference"
    item = {**given, "type": _text(kind, f"{where}.type")}
    if kind == "item_reference":
        return item
    if not isinstance(given.get("id"), str) or not given["id"]:
        item["id"] = f"{_ID_PREFIXES.get(kind, 'item')}_{new_id()}"
    if kind != "reasoning" and not isinstance(given.get("status"), str):
        item["status"] = "completed"
    content = given.get("content")
    if kind == "message" and isinstance(content, str):
        if given.get("role") == "assistant":
            item["content"] = [{"type": "output_text", "text": content, "annotations": []}]
        else:
            item["content"] = [{"type": "input_text", "text": content}]
    return item


def chat_messages(items: Sequence[Item], *, first: int, instructions: str | None) -> list[dict[str, Any]]:
    """The conversation as chat messages, ``instructions`` in front.

    ``items[first]`` is the request's own first item; the ones before it are remembered. Raises RequestError
    naming the part that cannot be used.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    turn = _Turn()
    for index, item in enumerate(items):
        where = f"input[{index - first}]" if index >= first else "previous_response_id"
        if turn.take(item, where):
            continue
        message = _message(item, where)
        if message is not None:
            messages += turn.end()
            messages.append(message)
    return messages + turn.end()


@dataclass(slots=True)
class _Turn:
    """An assistant turn in the making."""

    reasoning: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def take(self, item: Item, where: str) -> bool:
        """Whether ``item`` is part of an assistant turn, and so was taken."""
        kind = item["type"]
        if kind == "reasoning":
            text = _reasoning(item, where)
            if text:
                self.reasoning.append(text)
        elif kind == "message" and item.get("role") == "assistant":
            self.texts.append("".join(_parts(item.get("content"), f"{where}.content")))
        elif kind == "function_call":
            arguments = _text(item.get("arguments", "{}"), f"{where}.arguments")
            self._call(item, where, _name(item, where), arguments)
        elif kind == "custom_tool_call":
            given = _text(item.get("input", ""), f"{where}.input")
            self._call(item, where, _name(item, where), custom_arguments(given))
        elif kind in _CLIENT_CALLS:
            arguments = json.dumps(item.get(_CLIENT_CALLS[kind]) or {}, ensure_ascii=False)
            self._call(item, where, kind.removesuffix("_call"), arguments)
        else:
            return False
        return True

    def end(self) -> list[dict[str, Any]]:
        """The turn's message, if there is one; the next turn begins empty."""
        if not (self.reasoning or self.texts or self.calls):
            return []
        message: dict[str, Any] = {"role": "assistant", "content": "\n".join(self.texts)}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        self.reasoning, self.texts, self.calls = [], [], []
        return [message]

    def _call(self, item: Item, where: str, name: str, arguments: str) -> None:
        call_id = _text(item.get("call_id") or item.get("id"), f"{where}.call_id")
        self.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})


def _message(item: Item, where: str) -> dict[str, Any] | None:
    """What is not the assistant's; None for items that only OpenAI's servers understand."""
    kind = item["type"]
    if kind == "message":
        role = item.get("role")
        if role not in _ROLES:
            raise RequestError(f"{where}.role must be one of {', '.join(_ROLES)}", field=f"{where}.role")
        return {"role": role, "content": "\n".join(_parts(item.get("content"), f"{where}.content"))}
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = "\n".join(_parts(_without_images(item.get("output")), f"{where}.output"))
        return {"role": "tool", "tool_call_id": _text(item.get("call_id"), f"{where}.call_id"), "content": output}
    if kind in _CLIENT_OUTPUTS:
        given = item.get("output")
        call_id = _text(item.get("call_id") or item.get("id"), f"{where}.call_id")
        output = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return {"role": "tool", "tool_call_id": call_id, "content": output}
    return None


def _reasoning(item: Item, where: str) -> str:
    """The reasoning as the model wrote it, or what is known of it.

    Our own text is in ``encrypted_content`` or ``content``; what another server has encrypted leaves a summary.
    """
    sealed = item.get("encrypted_content")
    found = unseal_reasoning(sealed) if isinstance(sealed, str) else None
    if found is not None:
        return found
    for member in ("content", "summary"):
        if item.get(member):
            return "\n".join(_parts(item[member], f"{where}.{member}"))
    return ""


def _without_images(output: object) -> object:
    """What a tool gave back, with words in the place of images: refusing them would end the conversation for good."""
    if not isinstance(output, list):
        return output
    return [_UNSEEN_IMAGE if isinstance(part, dict) and part.get("type") == "input_image" else part for part in output]


def _parts(content: object, where: str) -> list[str]:
    """The texts of a string or of a list of parts."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a string or an array, not {json_type(content)}", field=where)
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _part(part: object, where: str) -> str:
    if not isinstance(part, dict):
        raise RequestError(f"{where} must be an object, not {json_type(part)}", field=where)
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
        return _text(part.get("text"), f"{where}.text")
    if kind == "refusal":
        return _text(part.get("refusal"), f"{where}.refusal")
    reason = "the model has no vision" if kind == "input_image" else "only text parts are supported"
    raise RequestError(
        f"{where}.type is {str(kind)[:100]!r}: {reason}", field=f"{where}.type", code="unsupported_content"
    )


def _name(item: Item, where: str) -> str:
    namespace = item.get("namespace")
    name = _text(item.get("name"), f"{where}.name")
    return flat_name(name, None if namespace is None else _text(namespace, f"{where}.namespace"))


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{where} must be a string, not {json_type(value)}", field=where, code="invalid_type")
    return value
