"""The calls of a trace in one form: tools and messages, as every protocol brings them to a template."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

import msgspec

from anchorline.api.messages_content import convert_conversation
from anchorline.api.messages_tools import convert_tools
from anchorline.api.responses_input import chat_messages, input_items
from anchorline.api.responses_tools import chat_tools
from anchorline.bench.live.protocols import CHAT, MESSAGES, RESPONSES, protocol_of, why_left_out
from anchorline.bench.trace import TraceRequest
from anchorline.errors import RequestError
from anchorline.limits import Limits
from anchorline.prompt.messages import normalise_messages
from anchorline.prompt.volatile import BILLING_HEADER


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; its id is left out, since clients rewrite ids and no template is shown them as sent."""

    name: str
    arguments: str
    """JSON text as it was sent."""


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def text(self) -> str:
        """Everything that a template shows of it, in the order in which most do."""
        calls = [text for call in self.calls for text in (call.name, call.arguments)]
        return "\n".join(part for part in (self.reasoning, self.content, *calls) if part)


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    text: str
    """The whole definition as compact JSON, its keys in the order they were sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """One call. ``index`` counts the requests of the trace, from 0."""

    index: int
    tools: tuple[Tool, ...]
    messages: tuple[Message, ...]
    billing_header: str | None = None
    """A leading billing header, which never reaches a prompt and so is not among the messages."""

    @property
    def system(self) -> tuple[Message, ...]:
        """The messages before the first that is not the system's."""
        return tuple(takewhile(lambda message: message.role == "system", self.messages))

    @property
    def history(self) -> tuple[Message, ...]:
        return self.messages[len(self.system) :]

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)


class _ChatFields(msgspec.Struct, kw_only=True):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


class _MessagesFields(msgspec.Struct, kw_only=True):
    messages: list[dict[str, Any]]
    system: str | list[Any] | None = None
    tools: list[dict[str, Any]] | None = None


class _ResponsesFields(msgspec.Struct, kw_only=True):
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None


def read_request(request: TraceRequest, index: int) -> AgentRequest:
    """One recorded call. Raises RequestError saying why it cannot be read."""
    reason = why_left_out(request.path, request.body)
    if reason is not None:
        raise RequestError(reason)
    protocol = protocol_of(request.path)
    assert protocol is not None, "it is a chat call"
    try:
        return _READERS[protocol.ending](request.body, index)
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from error
    except UnicodeEncodeError as error:  # no server takes it either
        raise RequestError("a text holds half a surrogate pair") from error


def _chat(body: Mapping[str, Any], index: int) -> AgentRequest:
    fields = msgspec.convert(body, _ChatFields)
    return _request(index, fields.messages, fields.tools or ())


def _messages(body: Mapping[str, Any], index: int) -> AgentRequest:
    fields = msgspec.convert(body, _MessagesFields)
    conversation = convert_conversation(fields.system, fields.messages)
    tools = convert_tools(fields.tools or []).values()
    return _request(index, conversation.messages, tools, billing_header=_billing_header(fields.system))


def _responses(body: Mapping[str, Any], index: int) -> AgentRequest:
    fields = msgspec.convert(body, _ResponsesFields)
    ids = count()
    items = input_items(fields.input or [], new_id=lambda: str(next(ids)))
    messages = chat_messages(items, first=0, instructions=fields.instructions)
    return _request(index, messages, chat_tools(fields.tools or [], limits=Limits()).tools)


_READERS: dict[str, Callable[[Mapping[str, Any], int], AgentRequest]] = {
    CHAT.ending: _chat,
    MESSAGES.ending: _messages,
    RESPONSES.ending: _responses,
}
"""By the ending of the path."""


def _request(
    index: int,
    messages: Sequence[Mapping[str, Any]],
    tools: Iterable[Mapping[str, Any]],
    *,
    billing_header: str | None = None,
) -> AgentRequest:
    return AgentRequest(
        index=index,
        tools=tuple(read_tool(tool, f"tools[{place}]") for place, tool in enumerate(tools)),
        messages=tuple(_message(message) for message in normalise_messages(messages)),
        billing_header=billing_header,
    )


def read_tool(tool: Mapping[str, Any], where: str) -> Tool:
    """A tool from its definition. Raises RequestError when it has no name."""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    if not isinstance(name, str):
        raise RequestError(f"{where} has no name", field=where)
    return Tool(name, json.dumps(tool, ensure_ascii=False, separators=(",", ":")))


def _message(message: Mapping[str, Any]) -> Message:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return Message(
        role=message["role"],
        content=message["content"],
        reasoning=message.get("reasoning_content", ""),
        calls=tuple(Call(function["name"], function["arguments"]) for function in functions),
    )


def _billing_header(system: str | list[Any] | None) -> str | None:
    """The header that ``convert_conversation`` drops; its system prompt was checked there."""
    first = system[0]["text"] if isinstance(system, list) and system else system
    if not isinstance(first, str) or not first.startswith(BILLING_HEADER):
        return None
    return first.partition("\n")[0]
