"""``POST /v1/responses``: the request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from anchorline.api.chat import ChatBody, ChatCall, ChatPrompt, chat_call, chat_prompt
from anchorline.api.decode import decode_body, json_type
from anchorline.api.options import ApiContext
from anchorline.api.ranges import Numeric, Range, check_whole
from anchorline.api.responses_input import Item, chat_messages, input_items
from anchorline.api.responses_object import Echo
from anchorline.api.responses_store import ResponseStore, StoredResponse
from anchorline.api.responses_tools import ToolOrigin, chat_tool_choice, chat_tools
from anchorline.api.sampling import SamplingFields
from anchorline.errors import RequestError
from anchorline.limits import Limits

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
METADATA_ENTRIES, METADATA_KEY_CHARACTERS, METADATA_VALUE_CHARACTERS = 16, 64, 512
"""OpenAI's own limits."""

_FORMATS = ("text", "json_object", "json_schema")
_TOOL_FIELD = re.compile(r"tools\[(\d+)\](?:\.function)?")
_RENAMED = (
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("messages", "input"),
)
"""Chat's fields, and what they are made from here."""
_NAMED_ALIKE = (
    "model",
    "stream",
    "parallel_tool_calls",
    "user",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_salt",
)
"""Fields that chat has, too."""


class TextFields(msgspec.Struct, kw_only=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningFields(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None


class ResponsesBody(SamplingFields, kw_only=True):
    """The body as sent. Unknown fields are ignored, as OpenAI clients expect."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Numeric = None
    max_tool_calls: Numeric = None
    top_logprobs: Numeric = None
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    cache_salt: str | None = None
    safety_identifier: str | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptInput:
    """What is to be kept with the response."""

    items: bytes
    """The request's own items, as JSON."""
    item_ids: tuple[str, ...]
    previous: StoredResponse | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCall:
    """A checked request."""

    chat: ChatCall
    echo: Echo
    origins: Mapping[str, ToolOrigin]
    seals_reasoning: bool
    """Reasoning is wanted as ``encrypted_content`` too."""
    kept: KeptInput | None
    """None when nothing is to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One client's part of the store."""

    store: ResponseStore
    tenant: str


def parse_responses(raw: bytes, *, context: ApiContext, memory: Memory, new_id: Callable[[], str]) -> ResponsesCall:
    """Decode and check a body. Raises RequestError naming the field, NotFound for an item that is not kept."""
    body = decode_body(raw, ResponsesBody)
    _refuse_unsupported(body)
    if body.input is None and body.previous_response_id is None:
        raise RequestError("input is required", field="input", code="missing_required_parameter")
    previous = None
    if body.previous_response_id is not None:
        previous = memory.store.previous(memory.tenant, body.previous_response_id)
    own = _resolve(input_items(body.input or [], new_id=new_id), memory)
    remembered = previous.context() + previous.output() if previous is not None else []
    _check_length(len(remembered) + len(own), context.limits)
    tools = chat_tools(body.tools or [], limits=context.limits)
    messages = chat_messages(remembered + own, first=len(remembered), instructions=body.instructions)
    if not messages:
        raise RequestError("input must hold at least one item", field="input", code="empty_array")
    fields: dict[str, Any] = {
        "messages": messages,
        "continue_final_message": False,  # here a last item of the assistant's is a whole turn
        "tools": tools.tools or None,
        "tool_choice": chat_tool_choice(body.tool_choice, tools.origins),
    }
    with responses_fields(tools.origins):
        chat = chat_call(msgspec.convert(fields | _chat_fields(body, context), ChatBody), context=context)
    kept = None
    if body.store is not False:
        ids = tuple(dict.fromkeys(item["id"] for item in own))
        kept = KeptInput(items=msgspec.json.encode(own), item_ids=ids, previous=previous)
    return ResponsesCall(
        chat=chat,
        echo=_echo(body, chat),
        origins=tools.origins,
        seals_reasoning="reasoning.encrypted_content" in (body.include or ()),
        kept=kept,
    )


def parse_responses_prompt(raw: bytes, *, limits: Limits) -> ChatPrompt:
    """What to render of a body whose input is all there. Raises RequestError naming the field."""
    body = decode_body(raw, ResponsesBody)
    _refuse_unsupported(body)
    if body.previous_response_id is not None:
        raise RequestError("previous_response_id: send all of the input", field="previous_response_id")
    tools = chat_tools(body.tools or [], limits=limits)
    items = input_items(body.input or [], new_id=str)
    chat = ChatBody(
        messages=chat_messages(items, first=0, instructions=body.instructions),
        continue_final_message=False,
        tools=tools.tools or None,
        reasoning_effort=_effort(body),
    )
    with responses_fields(tools.origins):
        return chat_prompt(chat, limits=limits)


@contextmanager
def responses_fields(origins: Mapping[str, ToolOrigin]) -> Iterator[None]:
    """Errors raised inside name this protocol's fields in the place of chat's."""
    try:
        yield
    except RequestError as error:
        renamed = _own_name(error.field or "", [origin.where for origin in origins.values()])
        if renamed is not None:
            chat_name, own_name = renamed
            error.field = own_name + (error.field or "")[len(chat_name) :]
            error.args = (str(error).replace(chat_name, own_name),)
        raise


def _own_name(field: str, tools: list[str]) -> tuple[str, str] | None:
    """The part of ``field`` that is chat's, and what it is here; ``tools`` says where each tool was."""
    found = _TOOL_FIELD.match(field)
    if found is not None and int(found[1]) < len(tools):
        return found[0], tools[int(found[1])]
    return next((names for names in _RENAMED if field.startswith(names[0])), None)


def _refuse_unsupported(body: ResponsesBody) -> None:
    """What would change where the conversation comes from or goes to, and cannot be had here."""
    unsupported = {
        "background": (body.background is True, "responses are not made in the background"),
        "conversation": (body.conversation is not None, "send input or previous_response_id"),
        "prompt": (body.prompt is not None, "prompt templates are not kept here; send input"),
    }
    for name, (given, reason) in unsupported.items():
        if given:
            raise RequestError(f"{name} is not supported: {reason}", field=name, code="unsupported_value")


def _resolve(items: list[Item], memory: Memory) -> list[Item]:
    """References replaced by the kept items that they name."""
    resolved = []
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            where = f"input[{index}].id"
            named = item.get("id")
            if not isinstance(named, str):
                raise RequestError(f"{where} must be a string, not {json_type(named)}", field=where)
            item = memory.store.item(memory.tenant, named, where=where)
        resolved.append(item)
    return resolved


def _check_length(count: int, limits: Limits) -> None:
    if count > limits.messages:
        raise RequestError(
            f"input has {count} items with those before it; at most {limits.messages} are allowed (--max-messages)",
            field="input",
        )


def _chat_fields(body: ResponsesBody, context: ApiContext) -> dict[str, Any]:
    """The other fields, as chat has them."""
    fields: dict[str, Any] = {name: getattr(body, name) for name in SamplingFields.__struct_fields__}
    fields |= {name: getattr(body, name) for name in _NAMED_ALIKE}
    fields["max_completion_tokens"] = check_whole(
        "max_output_tokens", body.max_output_tokens, allowed=Range(low=1, high=2**63 - 1, whole=True)
    )
    if "message.output_text.logprobs" in (body.include or ()):
        most = Range(low=0, high=context.limits.logprobs, whole=True, flag="--max-logprobs")
        fields["logprobs"] = True
        fields["top_logprobs"] = check_whole("top_logprobs", body.top_logprobs, allowed=most)
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _response_format(body.text.format)
    fields["reasoning_effort"] = _effort(body)
    return fields


def _effort(body: ResponsesBody) -> str | None:
    if body.reasoning is None or body.reasoning.effort is None:
        return None
    return _one_of("reasoning.effort", body.reasoning.effort, EFFORTS)


def _response_format(given: dict[str, Any]) -> dict[str, Any]:
    kind = _one_of("text.format.type", given.get("type"), _FORMATS)
    if kind != "json_schema":
        return {"type": kind}
    if not isinstance(given.get("schema"), dict):
        found = json_type(given.get("schema"))
        raise RequestError(f"text.format.schema must be an object, not {found}", field="text.format.schema")
    return {"type": kind, "json_schema": {name: value for name, value in given.items() if name != "type"}}


def _echo(body: ResponsesBody, chat: ChatCall) -> Echo:
    text, reasoning = body.text or TextFields(), body.reasoning or ReasoningFields()
    _one_of("truncation", body.truncation or "disabled", ("disabled", "auto"))
    return Echo(
        instructions=body.instructions,
        max_output_tokens=chat.options.max_tokens,
        max_tool_calls=check_whole("max_tool_calls", body.max_tool_calls, allowed=Range(low=1, high=2**31 - 1)),
        metadata=_metadata(body.metadata or {}),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_retention=body.prompt_cache_retention,
        reasoning={"effort": reasoning.effort, "summary": reasoning.summary},
        safety_identifier=body.safety_identifier,
        store=body.store is not False,
        temperature=chat.options.sampling.temperature,
        text={"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"},
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=body.tools or [],
        top_logprobs=chat.options.logprobs or 0,
        top_p=chat.options.sampling.top_p,
        user=body.user,
    )


def _metadata(given: dict[str, str]) -> dict[str, str]:
    if len(given) > METADATA_ENTRIES:
        raise RequestError(
            f"metadata has {len(given)} entries; at most {METADATA_ENTRIES} are allowed", field="metadata"
        )
    for key, value in given.items():
        if len(key) > METADATA_KEY_CHARACTERS or len(value) > METADATA_VALUE_CHARACTERS:
            raise RequestError(
                f"metadata: keys may be {METADATA_KEY_CHARACTERS} and values {METADATA_VALUE_CHARACTERS} "
                f"characters long",
                field="metadata",
            )
    return given


def _one_of(field: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise RequestError(f"{field} must be one of {', '.join(allowed)}", field=field, code="unsupported_value")
    return value
