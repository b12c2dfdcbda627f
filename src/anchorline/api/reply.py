"""What the replies of both completion endpoints share: head, collected choices, the writer's face."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from anchorline.api import sse
from anchorline.api.errors import ApiError
from anchorline.api.options import CallOptions
from anchorline.api.usage import Timings, Usage, timings, usage
from anchorline.cache.prompt import PinWish
from anchorline.engine.request import CallReport, FinishReason
from anchorline.llama.interface import Tokenizer
from anchorline.output.events import (
    ChoiceEvent,
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    TextDelta,
    TokenText,
    ToolCallDelta,
    ToolCallStarted,
)
from anchorline.prompt.rewrites import NOTHING_REWRITTEN, Rewriting


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What every chunk and reply of one call repeats, and what their last part needs."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    fingerprint: str
    options: CallOptions
    tokenizer: Tokenizer
    prompt_tokens: int
    render_seconds: float
    tokenize_seconds: float
    rewriting: Rewriting = NOTHING_REWRITTEN
    pin_wishes: tuple[PinWish, ...] = ()
    """As ``Prompt.pin_wishes``."""


def timings_of(head: ReplyHead, report: CallReport) -> Timings:
    """``timings`` of the call with this head."""
    return timings(
        report,
        render_seconds=head.render_seconds,
        tokenize_seconds=head.tokenize_seconds,
        rewriting=head.rewriting,
    )


@dataclass(slots=True)
class CollectedCall:
    """One tool call of a reply that is sent whole; its arguments may be cut off when the reply was."""

    id: str
    name: str
    argument_parts: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.argument_parts)


@dataclass(slots=True)
class CollectedChoice:
    """One choice of a reply that is sent whole."""

    text_parts: list[str] = field(default_factory=list)
    reasoning_parts: list[str] = field(default_factory=list)
    calls: list[CollectedCall] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    """Of text, reasoning and calls, in the order they were generated."""
    finished: ChoiceFinished | None = None

    @property
    def text(self) -> str:
        return "".join(self.text_parts)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasoning_parts)

    @property
    def finish_reason(self) -> str | None:
        return None if self.finished is None else finish_reason(self.finished)

    @property
    def token_ids(self) -> list[int]:
        return [token.token for token in self.tokens]

    def add(self, event: ChoiceEvent) -> None:
        """Take the next event of this choice."""
        match event:
            case TextDelta():
                self.text_parts.append(event.text)
                self.tokens.extend(event.tokens)
            case ReasoningDelta():
                self.reasoning_parts.append(event.text)
                self.tokens.extend(event.tokens)
            case ToolCallStarted():
                self.calls.append(CollectedCall(event.id, event.name))
            case ToolCallDelta():
                self.calls[event.call].argument_parts.append(event.arguments)
                self.tokens.extend(event.tokens)
            case ChoiceFinished():
                self.finished = event


def finish_reason(event: ChoiceFinished) -> str:
    """OpenAI's name for the end of a choice: one that ended by itself after calls waits for their results."""
    if event.reason is FinishReason.STOP and event.calls:
        return "tool_calls"
    return event.reason.value


def collect(events: list[ReplyEvent], *, choices: int) -> tuple[CollectedChoice, ...]:
    """Put the events of a finished reply together, choice by choice."""
    collected = tuple(CollectedChoice() for _ in range(choices))
    for event in events:
        if not isinstance(event, ReplyFinished | ReplyFailed):
            collected[event.choice].add(event)
    return collected


class ReplyWriter(Protocol):
    """One protocol's way of writing one reply. Keeps state: feed it each event once, in order."""

    def stream(self, event: ChoiceEvent | ReplyFinished) -> bytes:
        """The server-sent events that ``event`` adds to a streamed reply; may be empty."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of a streamed reply that fails after it has begun."""
        ...

    def ping(self) -> bytes:
        """What keeps the connection of a streamed reply open while nothing is to be said."""
        ...

    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> msgspec.Struct:
        """The reply in one piece."""
        ...


class Chunk(msgspec.Struct, kw_only=True):
    """What a chunk and a whole reply of both completion protocols begin and end with."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class ChunkWriter(ABC):
    """The ReplyWriter of chat and text completions: chunks with choices in them.

    The last chunk carries the timings, as in llama-server. A choice's finishing chunk is held back by one
    event, since only the end of the reply tells whether it is the last.
    """

    chunk_object: str
    """The ``object`` member of a chunk."""

    def __init__(self, head: ReplyHead) -> None:
        self.head = head
        self._held: Chunk | None = None

    @abstractmethod
    def deltas(self, event: ChoiceEvent) -> list[Any]:
        """The choices of the chunks that ``event`` adds, in order, but for a finishing one."""

    @abstractmethod
    def finishing(self, event: ChoiceFinished) -> Any:
        """The choice of the chunk that ends one."""

    @abstractmethod
    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> msgspec.Struct: ...

    def chunks(self, event: ChoiceEvent | ReplyFinished) -> list[Chunk]:
        """The chunks that ``event`` adds to a streamed reply, in order."""
        if isinstance(event, ReplyFinished):
            return self._end(event)
        out = [] if self._held is None else [self._held]
        self._held = None
        out.extend(self.chunk([choice]) for choice in self.deltas(event))
        if isinstance(event, ChoiceFinished):
            self._held = self.chunk([self.finishing(event)])
        return out

    def stream(self, event: ChoiceEvent | ReplyFinished) -> bytes:
        events = b"".join(sse.event(chunk) for chunk in self.chunks(event))
        return events + sse.DONE if isinstance(event, ReplyFinished) else events

    def failed(self, error: ApiError) -> bytes:
        return sse.error_event(error)

    def ping(self) -> bytes:
        return sse.PING

    def chunk(self, choices: list[Any]) -> Chunk:
        head = self.head
        return Chunk(
            id=head.id,
            object=self.chunk_object,
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=choices,
            usage=None if head.options.include_usage else msgspec.UNSET,
        )

    def complete(self, chunk: Chunk, finished: ReplyFinished) -> Chunk:
        """``chunk`` as a whole reply: with usage and timings."""
        chunk.usage = usage(finished.report)
        chunk.timings = self._timings(finished)
        return chunk

    def _end(self, finished: ReplyFinished) -> list[Chunk]:
        out: list[Chunk] = []
        last = self._held or self.chunk([])
        if self.head.options.include_usage:
            if self._held is not None:
                out.append(self._held)
            last = self.complete(self.chunk([]), finished)
        last.timings = self._timings(finished)
        out.append(last)
        self._held = None
        return out

    def _timings(self, finished: ReplyFinished) -> Timings:
        return timings_of(self.head, finished.report)


def token_ids(tokens: Sequence[TokenText], *, wanted: bool) -> list[int] | msgspec.UnsetType:
    """Ids for ``return_tokens``; left out when not asked for."""
    return [token.token for token in tokens] if wanted else msgspec.UNSET
