"""``POST /v1/messages`` and ``/v1/messages/count_tokens``, Anthropic's protocol: the request.

A body is brought into the form of a chat completion, so that both protocols share one way down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from anchorline.api.cache_hints import CacheHints, messages_marks
from anchorline.api.chat import ChatBody, ChatCall, ChatPrompt, chat_call, chat_prompt
from anchorline.api.decode import decode_body, json_type
from anchorline.api.messages_content import Conversation, convert_conversation
from anchorline.api.messages_thinking import thinking_shown, thinking_switch
from anchorline.api.messages_tools import convert_tool_choice, convert_tools
from anchorline.api.options import ApiContext
from anchorline.api.ranges import Numeric, Range, check_whole
from anchorline.api.sampling import SamplingFields
from anchorline.errors import RequestError
from anchorline.limits import Limits

_MAX_TOKENS = Range(low=0, high=2**63 - 1, whole=True)
_OTHER_NAMES = (
    ("response_format.json_schema.schema", "output_config.format.schema"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("thinking_budget", "thinking.budget_tokens"),
    ("stop", "stop_sequences"),
)
"""What a chat completion calls a field, and what Messages calls it."""


class MessagesBody(SamplingFields, kw_only=True):
    """The body as sent. Unknown fields are ignored, since betas add new ones.

    Sampling fields beyond Anthropic's have llama-server's names.
    """

    messages: list[dict[str, Any]]
    system: str | list[Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    """The older name of ``output_config.format``."""
    cache_control: dict[str, Any] | None = None
    cache_salt: str | None = None
    max_tokens: Numeric = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyShape:
    """What the reply depends on besides what the model says."""

    shows_thinking: bool
    """False for ``thinking.display: omitted``: only a signature stands for the thinking."""
    warms: bool
    """``max_tokens: 0`` prefills, so that the prompt is kept, and replies nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesCall:
    """A checked Messages request."""

    chat: ChatCall
    shape: ReplyShape
    tool_places: tuple[int, ...]
    """Where in the request's ``tools`` those of the chat call stand."""


def parse_messages(raw: bytes, *, context: ApiContext) -> MessagesCall:
    """Decode and check a Messages body. Raises RequestError naming the field."""
    body = decode_body(raw, MessagesBody)
    max_tokens = check_whole("max_tokens", body.max_tokens, allowed=_MAX_TOKENS)
    if max_tokens is None:
        raise RequestError("max_tokens is required", field="max_tokens", code="missing_required_parameter")
    conversation = _conversation(body)
    tools = convert_tools(body.tools or [])
    chat = _chat_body(body, conversation, list(tools.values()))
    chat.max_tokens = max(1, max_tokens)
    chat.stop = body.stop_sequences
    chat.stream = body.stream
    for name in SamplingFields.__struct_fields__:
        setattr(chat, name, getattr(body, name))
    shape = ReplyShape(shows_thinking=thinking_shown(body.thinking), warms=max_tokens == 0)
    marks = messages_marks(
        request=body.cache_control,
        tools=body.tools or (),
        system=body.system,
        messages=body.messages,
        ends=conversation.ends,
    )
    with in_the_words_of_messages(tuple(tools)):
        call = replace(chat_call(chat, context=context), cache=CacheHints(marks=marks))
    return MessagesCall(chat=call, shape=shape, tool_places=tuple(tools))


def parse_count_tokens(raw: bytes, *, limits: Limits) -> ChatPrompt:
    """Decode and check a ``count_tokens`` body: what to render, as for a call with the same fields."""
    body = decode_body(raw, MessagesBody)
    tools = list(convert_tools(body.tools or []).values())
    with in_the_words_of_messages():
        return chat_prompt(_chat_body(body, _conversation(body), tools), limits=limits)


@contextmanager
def in_the_words_of_messages(tool_places: Sequence[int] = ()) -> Iterator[None]:
    """Errors about a chat completion's fields name the Messages fields that they were made from.

    ``tool_places`` are the places in the request of the tools that were converted.
    """
    try:
        yield
    except RequestError as error:
        names = [*_OTHER_NAMES]
        for place, given in enumerate(tool_places):
            names.append((f"tools[{place}].function.parameters", f"tools[{given}].input_schema"))
        for chat_name, name in names:
            if error.field is not None and (error.field + ".").startswith((chat_name + ".", chat_name + "[")):
                field = name + error.field.removeprefix(chat_name)
                message = str(error).replace(chat_name, name, 1)
                raise RequestError(message, field=field, code=error.code) from error
        raise


def _conversation(body: MessagesBody) -> Conversation:
    if not body.messages:
        raise RequestError("messages must hold at least one message", field="messages", code="empty_array")
    return convert_conversation(body.system, body.messages)


def _chat_body(body: MessagesBody, conversation: Conversation, tools: list[dict[str, Any]]) -> ChatBody:
    choice = convert_tool_choice(body.tool_choice, tools=tools)
    return ChatBody(
        messages=conversation.messages,
        tools=tools,
        tool_choice=choice.choice,
        parallel_tool_calls=choice.parallel,
        enable_thinking=thinking_switch(body.thinking),
        reasoning_effort=_effort(body),
        thinking_budget=(body.thinking or {}).get("budget_tokens"),
        response_format=_response_format(body),
        cache_salt=body.cache_salt,
    )


def _effort(body: MessagesBody) -> str | None:
    effort = (body.output_config or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        raise RequestError(
            f"output_config.effort must be a string, not {json_type(effort)}", field="output_config.effort"
        )
    return effort


def _response_format(body: MessagesBody) -> dict[str, Any] | None:
    """``output_config.format`` as a chat completion has it."""
    name, given = "output_config.format", (body.output_config or {}).get("format")
    if given is None:
        name, given = "output_format", body.output_format
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        raise RequestError(f'{name}.type must be "json_schema"', field=f"{name}.type", code="unsupported_value")
    schema = given.get("schema")
    if not isinstance(schema, dict):
        raise RequestError(f"{name}.schema must be an object", field=f"{name}.schema", code="invalid_type")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}
