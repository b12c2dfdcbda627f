"""``POST /v1/chat/completions``: the reply, streamed and whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from anchorline.api.logprobs import ChatLogprobs, chat_logprobs
from anchorline.api.reply import Chunk, ChunkWriter, CollectedChoice, ReplyHead, collect, finish_reason, token_ids
from anchorline.output.events import (
    ChoiceEvent,
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFinished,
    TextDelta,
    TokenText,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)


class FunctionDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallChunk(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a chunk adds to a call; only its first one says id, type and name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallChunk] | None = None


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET


class Function(msgspec.Struct, kw_only=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: str = "function"
    function: Function


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatWriter(ChunkWriter):
    """Writes one chat reply."""

    chunk_object = "chat.completion.chunk"

    def __init__(self, head: ReplyHead) -> None:
        super().__init__(head)
        self._opened: set[int] = set()

    def deltas(self, event: ChoiceEvent) -> list[ChatChunkChoice]:
        """The role opens each choice."""
        out: list[ChatChunkChoice] = []
        if event.choice not in self._opened:
            self._opened.add(event.choice)
            out.append(ChatChunkChoice(index=event.choice, delta=ChatDelta(role="assistant", content="")))
        match event:
            case TextDelta(text="") if not self._shows_tokens:
                pass  # only markers' tokens: a client might take an empty text for a part of the answer
            case TextDelta():
                out.append(self._delta(event.choice, ChatDelta(content=event.text), event.tokens))
            case ReasoningDelta():
                out.append(self._delta(event.choice, ChatDelta(reasoning_content=event.text), event.tokens))
            case ToolCallStarted():
                out.append(ChatChunkChoice(index=event.choice, delta=_call_opening(event)))
            case ToolCallDelta():
                out.append(self._delta(event.choice, _call_arguments(event), event.tokens))
            case ToolCallFinished() | ChoiceFinished():
                pass
        return out

    def finishing(self, event: ChoiceFinished) -> ChatChunkChoice:
        return ChatChunkChoice(index=event.choice, delta=ChatDelta(), finish_reason=finish_reason(event))

    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> Chunk:
        choices = collect(events, choices=self.head.options.choices)
        reply = self.chunk(
            [
                ChatChoice(
                    index=index,
                    message=_message(choice),
                    logprobs=self._logprobs(choice.tokens),
                    finish_reason=choice.finish_reason,
                    tokens=token_ids(choice.tokens, wanted=self.head.options.return_tokens),
                )
                for index, choice in enumerate(choices)
            ]
        )
        reply.object = "chat.completion"
        return self.complete(reply, finished)

    @property
    def _shows_tokens(self) -> bool:
        return self.head.options.return_tokens or self.head.options.logprobs is not None

    def _delta(self, choice: int, delta: ChatDelta, tokens: Sequence[TokenText]) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=choice,
            delta=delta,
            logprobs=self._logprobs(tokens),
            tokens=token_ids(tokens, wanted=self.head.options.return_tokens),
        )

    def _logprobs(self, tokens: Sequence[TokenText]) -> ChatLogprobs | None:
        """Those of every token, be it text, reasoning or a call."""
        head = self.head
        return None if head.options.logprobs is None else chat_logprobs(tokens, tokenizer=head.tokenizer)


def _call_opening(event: ToolCallStarted) -> ChatDelta:
    function = FunctionDelta(name=event.name, arguments="")
    return ChatDelta(tool_calls=[ToolCallChunk(index=event.call, id=event.id, type="function", function=function)])


def _call_arguments(event: ToolCallDelta) -> ChatDelta:
    return ChatDelta(tool_calls=[ToolCallChunk(index=event.call, function=FunctionDelta(arguments=event.arguments))])


def _message(choice: CollectedChoice) -> ChatMessage:
    """Content is null when there is nothing but calls."""
    text, reasoning = choice.text, choice.reasoning
    calls = [ToolCall(id=call.id, function=Function(name=call.name, arguments=call.arguments)) for call in choice.calls]
    return ChatMessage(
        content=None if calls and not text else text,
        reasoning_content=reasoning or msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
    )
