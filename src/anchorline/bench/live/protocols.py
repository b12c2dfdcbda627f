"""The three protocols of agents: how a recorded body is sent again, and what the events of the answer say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anchorline.bench.client import CallFailed, told_as
from anchorline.bench.live.counts import TokenCounts, anthropic_counts, openai_counts
from anchorline.bench.reported import ChatEvent, MessagesEvent, ResponsesEvent

ANTHROPIC_VERSION = "2023-06-01"
MESSAGE_DELTAS = frozenset({"text_delta", "thinking_delta", "input_json_delta"})
KEPT_BY_SERVERS = ("previous_response_id", "conversation", "prompt")
"""Fields of a Responses call that name what only the server holds."""
SHOWN_PATH = 100
RESPONSE_ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed"})
AN_EVENT = "an event of the answer"


@dataclass(slots=True)
class Reader(ABC):
    """Takes the events of one answer."""

    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    """As llama-server and Anchorline have them; empty elsewhere."""
    reply: list[int] = field(default_factory=list)
    """Ids of the reply, where the server was asked for them and tells."""

    @abstractmethod
    def take(self, event: Mapping[str, Any]) -> bool:
        """Whether ``event`` brings a piece of the reply: text, reasoning or a call. Raises CallFailed."""

    @abstractmethod
    def counts(self) -> TokenCounts | None:
        """None without usage. Raises CallFailed for counts that are none."""


class ChatReader(Reader):
    def take(self, event: Mapping[str, Any]) -> bool:
        told = told_as(ChatEvent, event, what=AN_EVENT)
        self.usage = told.usage or self.usage
        self.timings = told.timings or self.timings
        said = False
        for choice in told.choices or ():
            self.reply.extend(choice.tokens or ())
            said |= choice.delta is not None and choice.delta.says_something()
        return said

    def counts(self) -> TokenCounts | None:
        return openai_counts(self.usage, self.timings)


class MessagesReader(Reader):
    def take(self, event: Mapping[str, Any]) -> bool:
        told = told_as(MessagesEvent, event, what=AN_EVENT)
        if told.type == "message_start" and told.message is not None:
            self._note(told.message.usage)
        self._note(told.usage)
        delta = told.delta
        if delta is None or delta.type not in MESSAGE_DELTAS:
            return False
        return bool(delta.text or delta.thinking or delta.partial_json)

    def _note(self, usage: Mapping[str, Any] | None) -> None:
        """Later figures replace earlier ones: a stream may open before they are known."""
        told = {name: value for name, value in (usage or {}).items() if value is not None}
        self.usage = {**self.usage, **told}

    def counts(self) -> TokenCounts | None:
        return anthropic_counts(self.usage)


class ResponsesReader(Reader):
    def take(self, event: Mapping[str, Any]) -> bool:
        told = told_as(ResponsesEvent, event, what=AN_EVENT)
        kind = str(told.type)
        if kind == "error":
            raise CallFailed(str(told.message), status=200)
        if kind in RESPONSE_ENDINGS and told.response is not None:
            response = told.response
            if response.status == "failed":
                raise CallFailed(str(response.error and response.error.message), status=200)
            self.usage = response.usage or {}
            self.timings = response.timings or told.timings or {}
        return kind.endswith(".delta") and bool(told.delta)

    def counts(self) -> TokenCounts | None:
        return openai_counts(self.usage, self.timings)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProtocol:
    """One protocol: the field that bounds a reply, what asks for a stream, and who reads it."""

    ending: str
    """Of the paths of its calls."""
    limit: str
    dropped: tuple[str, ...] = ()
    added: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    reader: type[Reader]


CHAT = WireProtocol(
    ending="/chat/completions",
    limit="max_tokens",
    dropped=("max_completion_tokens",),
    added={"stream_options": {"include_usage": True}},
    reader=ChatReader,
)
MESSAGES = WireProtocol(
    ending="/messages", limit="max_tokens", headers={"anthropic-version": ANTHROPIC_VERSION}, reader=MessagesReader
)
RESPONSES = WireProtocol(
    ending="/responses", limit="max_output_tokens", dropped=("stream_options",), reader=ResponsesReader
)


def protocol_of(path: str) -> WireProtocol | None:
    """What a call to ``path`` speaks; None for a path that no agent's call goes to."""
    plain = path.partition("?")[0].rstrip("/")
    return next((protocol for protocol in (CHAT, MESSAGES, RESPONSES) if plain.endswith(protocol.ending)), None)


def why_left_out(path: str, body: Mapping[str, Any]) -> str | None:
    """Why the prompt of a recorded call cannot be had from it: it is no chat, or only its server holds a part of it.

    None when it can.
    """
    protocol = protocol_of(path)
    if protocol is None:
        return f"{path[:SHOWN_PATH]} is no chat call"
    named = _kept_by_the_server(body) if protocol is RESPONSES else None
    return (
        None if named is None else f"{named} names what only the server holds, so the call lacks a part of its prompt"
    )


def head_alone(path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """A Responses call of whose prompt its server holds a part, without all that may be: its instructions and tools.

    Servers carry no instructions over, so with any these begin its prompt. None for calls without, for those whose
    instructions are kept there (``prompt``), and for other calls.
    """
    if protocol_of(path) is not RESPONSES or not body.get("instructions") or body.get("prompt") is not None:
        return None
    return {name: value for name, value in body.items() if name not in (*KEPT_BY_SERVERS, "input")}


def _kept_by_the_server(body: Mapping[str, Any]) -> str | None:
    """The field of a Responses call that stands for a part of its prompt."""
    items = body["input"] if isinstance(body.get("input"), list) else ()
    fields = [name for name in KEPT_BY_SERVERS if body.get(name) is not None]
    references = [f"input[{place}]" for place, item in enumerate(items) if _is_reference(item)]
    return next(iter(fields + references), None)


def _is_reference(item: Any) -> bool:
    """Whether an item of a Responses call is the name of one that its server keeps."""
    if not isinstance(item, Mapping):
        return False
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item)


def sent_again(
    body: Mapping[str, Any], protocol: WireProtocol, *, model: str | None, max_tokens: int
) -> dict[str, Any]:
    """``body`` as recorded, but greedy, streamed, with a reply of at most ``max_tokens``, and for ``model``."""
    recorded = next(
        (body[name] for name in (protocol.limit, *protocol.dropped) if isinstance(body.get(name), int)), None
    )
    return {
        **{name: value for name, value in body.items() if name not in protocol.dropped},
        **({} if model is None else {"model": model}),
        **protocol.added,
        protocol.limit: max_tokens if recorded is None else min(max_tokens, recorded),
        "temperature": 0,
        "stream": True,
    }
