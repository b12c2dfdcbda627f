"""``POST /v1/chat/completions``: the reply, streamed and whole."""

from __future__ import annotations

import msgspec

from anchorline.api.logprobs import ChatLogprobs, chat_logprobs
from anchorline.api.reply import Chunk, ChunkWriter, ReplyHead, collect, token_ids
from anchorline.output.events import ChoiceEvent, ChoiceFinished, ReplyEvent, ReplyFinished, TextDelta


class ChatDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


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
        if isinstance(event, TextDelta):
            out.append(self._delta(event))
        return out

    def finishing(self, event: ChoiceFinished) -> ChatChunkChoice:
        return ChatChunkChoice(index=event.choice, delta=ChatDelta(), finish_reason=event.reason.value)

    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> Chunk:
        head, options = self.head, self.head.options
        reply = self.chunk(
            [
                ChatChoice(
                    index=index,
                    message=ChatMessage(content=choice.text),
                    logprobs=None
                    if options.logprobs is None
                    else chat_logprobs(choice.tokens, tokenizer=head.tokenizer),
                    finish_reason=choice.finish_reason,
                    tokens=token_ids(tuple(choice.tokens), wanted=options.return_tokens),
                )
                for index, choice in enumerate(collect(events, choices=options.choices))
            ]
        )
        reply.object = "chat.completion"
        return self.complete(reply, finished)

    def _delta(self, event: TextDelta) -> ChatChunkChoice:
        head, options = self.head, self.head.options
        return ChatChunkChoice(
            index=event.choice,
            delta=ChatDelta(content=event.text),
            logprobs=None if options.logprobs is None else chat_logprobs(event.tokens, tokenizer=head.tokenizer),
            tokens=token_ids(event.tokens, wanted=options.return_tokens),
        )
