"""OpenAI chat messages, brought into the one form that templates get.

Content is always a string, roles are those templates know, tool calls always hold JSON text, and
nothing is left that templates do not read: ``cache_control`` and other metadata never reach a prompt.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from anchorline.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEMPLATE_ROLES = {"developer": "system", "function": "tool"}

Message = dict[str, Any]


def normalise_messages(messages: Sequence[Any]) -> list[Message]:
    """Messages as templates get them: role, content, name, tool_calls, tool_call_id, reasoning_content.

    ``developer`` becomes ``system``, the old ``function`` role becomes ``tool``, an old
    ``function_call`` a tool call. ``arguments`` stay JSON text (see ``parse_arguments``). Results of parallel
    calls come in the order of the calls, however a client collected them.
    Raises RequestError naming the part that cannot be used.
    """
    if not messages:
        raise RequestError("messages must hold at least one message", field="messages", code="empty_array")
    return in_call_order([_message(message, f"messages[{index}]") for index, message in enumerate(messages)])


def parse_arguments(text: str) -> Any:
    """The arguments as templates expect them: an object, or the text where it is no JSON object."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def system_count(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many system messages the (normalised) conversation begins with."""
    return next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))


def merge_system(messages: list[Message]) -> list[Message]:
    """Put leading system text in front of the first user message, for templates that refuse the role.

    Later system messages become user messages. Without a user message to join, one is made.
    """
    count = system_count(messages)
    merged = [{**message, "role": "user"} if message["role"] == "system" else message for message in messages[count:]]
    system = "\n\n".join(message["content"] for message in messages[:count] if message["content"])
    if not system:
        return merged
    if merged and merged[0]["role"] == "user":
        return [{**merged[0], "content": f"{system}\n\n{merged[0]['content']}"}, *merged[1:]]
    return [{"role": "user", "content": system}, *merged]


def split_parallel_calls(messages: list[Message]) -> list[Message]:
    """One assistant message per tool call, each followed by its result, for templates that allow no more.

    Results are matched by ``tool_call_id``, those without one in order; what is left comes last.
    """
    split: list[Message] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            split.append(message)
            continue
        end = position
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results, position = _Results(messages[position:end]), end
        for index, call in enumerate(calls):
            split.append({**message, "tool_calls": [call], "content": "" if index else message["content"]})
            split += results.take(call)
        split += results.left()
    return split


class _Results:
    """The results behind parallel calls, to be taken call by call."""

    def __init__(self, results: list[Message]) -> None:
        self._left = dict(enumerate(results))
        self._by_id: dict[str, list[int]] = {}
        self._unnamed: deque[int] = deque()
        for index, result in self._left.items():
            if "tool_call_id" in result:
                self._by_id.setdefault(result["tool_call_id"], []).append(index)
            else:
                self._unnamed.append(index)

    def take(self, call: Message) -> list[Message]:
        """The results of ``call``: those that name it, else the first that names none."""
        own = self._by_id.pop(call["id"], []) if "id" in call else []
        if not own and self._unnamed:
            own = [self._unnamed.popleft()]
        return [self._left.pop(index) for index in own]

    def left(self) -> list[Message]:
        return list(self._left.values())


def number_calls(
    messages: list[Message],
    name_id: Callable[[str, int], str],
    *,
    written: Mapping[int, Sequence[str | None]] = MappingProxyType({}),
) -> list[Message]:
    """Messages whose calls have the ids ``name_id(tool name, count)`` gives them, in order of appearance.

    For templates that show ids: clients rewrite them, and some models know only ids of one form. ``written`` are the
    ids that the model itself wrote, by message, which are kept.
    """
    ids: dict[str, str] = {}
    count = 0

    def call_id(given: str | None, name: str, own: str | None = None) -> str:
        nonlocal count
        made = own if own is not None else name_id(name, count)
        count += 1
        if given is not None:
            ids[given] = made
        return made

    numbered: list[Message] = []
    for index, message in enumerate(messages):
        changed = dict(message)
        if "tool_calls" in message:
            calls = message["tool_calls"]
            own_ids = written.get(index) or [None] * len(calls)
            changed["tool_calls"] = [
                {**call, "id": call_id(call.get("id"), call["function"]["name"], own)}
                for call, own in zip(calls, own_ids, strict=True)
            ]
        elif "tool_call_id" in message:
            given = message["tool_call_id"]
            changed["tool_call_id"] = ids.get(given) or call_id(given, message.get("name", "tool"))
        numbered.append(changed)
    return numbered


def in_call_order(messages: list[Message]) -> list[Message]:
    """Each run of tool results sorted as the calls of the last assistant message are; results of none stay behind."""
    ordered: list[Message] = []
    order: dict[str, int] = {}
    run: list[Message] = []
    for message in [*messages, None]:
        if message is not None and message["role"] == "tool":
            run.append(message)
            continue
        last = len(order)
        ordered += sorted(run, key=lambda result: order.get(result.get("tool_call_id", ""), last))
        run = []
        if message is not None:
            if message["role"] == "assistant":
                order = {call.get("id", ""): index for index, call in enumerate(message.get("tool_calls", ()))}
            ordered.append(message)
    return ordered


def _message(message: Any, field: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{field} must be an object", field=field, code="invalid_type")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(ROLES)
        raise RequestError(f"{field}.role is {role!r}; known roles are {known}", field=f"{field}.role")
    normal: Message = {
        "role": _TEMPLATE_ROLES.get(role, role),
        "content": _content(message.get("content"), f"{field}.content"),
    }
    _copy_text(message, normal, "name", field)
    if role == "assistant":
        calls = _tool_calls(message, field)
        if calls:
            normal["tool_calls"] = calls
        reasoning = "reasoning_content" if message.get("reasoning_content") is not None else "reasoning"
        if message.get(reasoning) is not None:
            normal["reasoning_content"] = _text(message[reasoning], f"{field}.{reasoning}")
    elif normal["role"] == "tool":
        _copy_text(message, normal, "tool_call_id", field)
    return normal


def _content(content: Any, field: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise RequestError(f"{field} must be a string or a list of parts", field=field, code="invalid_type")
    return "\n".join(_part(part, f"{field}[{index}]") for index, part in enumerate(content))


def _part(part: Any, field: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RequestError(f"{field} must be an object with a type", field=field, code="invalid_type")
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return _text(part.get("text"), f"{field}.text")
    if kind == "refusal":
        return _text(part.get("refusal"), f"{field}.refusal")
    if kind in ("image_url", "input_image", "image"):
        reason = "the model has no vision"
    elif kind in ("input_audio", "audio"):
        reason = "the model cannot hear audio"
    else:
        reason = "only text parts are supported"
    raise RequestError(f"{field}.type is {kind!r}: {reason}", field=f"{field}.type", code="unsupported_content")


def _tool_calls(message: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    if calls is None and message.get("function_call") is not None:
        return [{"type": "function", "function": _function(message["function_call"], f"{field}.function_call")}]
    if calls is None:
        return []
    if not isinstance(calls, (list, tuple)):
        raise RequestError(f"{field}.tool_calls must be a list", field=f"{field}.tool_calls", code="invalid_type")
    return [_tool_call(call, f"{field}.tool_calls[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Any, field: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise RequestError(f"{field} must be an object", field=field, code="invalid_type")
    normal: dict[str, Any] = {}
    _copy_text(call, normal, "id", field)
    return {**normal, "type": "function", "function": _function(call.get("function"), f"{field}.function")}


def _function(function: Any, field: str) -> dict[str, str]:
    if not isinstance(function, Mapping):
        raise RequestError(f"{field} must be an object", field=field, code="invalid_type")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "name": _text(function.get("name"), f"{field}.name"),
        "arguments": _text("{}" if arguments is None else arguments, f"{field}.arguments"),
    }


def _copy_text(source: Mapping[str, Any], target: dict[str, Any], key: str, field: str) -> None:
    if source.get(key) is not None:
        target[key] = _text(source[key], f"{field}.{key}")


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{field} must be a string", field=field, code="invalid_type")
    return value
