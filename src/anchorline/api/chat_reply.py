"""``POST /v1/chat/completions``: the reply, streamed and whole."""

from __future__ import annotations

import msgspec

from anchorline.api.logprobs import ChatLogprobs, chat_logprobs
from anchorline.api.reply import ReplyHead, collect, token_ids
from anchorline.api.usage import Timings, Usage, timings, usage
from anchorline.output.reply import ChoiceFinished, ReplyEvent, ReplyFinished, TextDelta


class ChatDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


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


class ChatReply(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings


class ChatWriter:
    """Writes one chat reply. ``chunks`` keeps state: feed it each event once, in order."""

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._opened: set[int] = set()
        self._held: ChatChunk | None = None

    def chunks(self, event: TextDelta | ChoiceFinished | ReplyFinished) -> list[msgspec.Struct]:
        """The role opens each choice; the last chunk carries the timings, as in llama-server.

        A finishing chunk is held back by one event, since only the end of the reply tells
        whether it is the last.
        """
        out: list[msgspec.Struct] = []
        if isinstance(event, ReplyFinished):
            return self._end(event)
        if self._held is not None:
            out.append(self._held)
            self._held = None
        if event.choice not in self._opened:
            self._opened.add(event.choice)
            out.append(self._chunk(ChatChunkChoice(index=event.choice, delta=ChatDelta(role="assistant", content=""))))
        if isinstance(event, TextDelta):
            out.append(self._chunk(self._delta(event)))
        else:
            self._held = self._chunk(
                ChatChunkChoice(index=event.choice, delta=ChatDelta(), finish_reason=event.reason.value)
            )
        return out

    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> ChatReply:
        head, options = self._head, self._head.options
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessage(content=choice.text),
                logprobs=None if options.logprobs is None else chat_logprobs(choice.tokens, tokenizer=head.tokenizer),
                finish_reason=choice.finish_reason,
                tokens=token_ids(tuple(choice.tokens), wanted=options.return_tokens),
            )
            for index, choice in enumerate(collect(events, choices=options.choices))
        ]
        return ChatReply(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=choices,
            usage=usage(finished.report),
            timings=self._timings(finished),
        )

    def _end(self, finished: ReplyFinished) -> list[msgspec.Struct]:
        out: list[msgspec.Struct] = []
        last = self._held or self._chunk()
        if self._head.options.include_usage:
            if self._held is not None:
                out.append(self._held)
            last = self._chunk()
            last.usage = usage(finished.report)
        last.timings = self._timings(finished)
        out.append(last)
        self._held = None
        return out

    def _delta(self, event: TextDelta) -> ChatChunkChoice:
        head, options = self._head, self._head.options
        return ChatChunkChoice(
            index=event.choice,
            delta=ChatDelta(content=event.text),
            logprobs=None if options.logprobs is None else chat_logprobs(event.tokens, tokenizer=head.tokenizer),
            tokens=token_ids(event.tokens, wanted=options.return_tokens),
        )

    def _chunk(self, *choices: ChatChunkChoice) -> ChatChunk:
        head = self._head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=list(choices),
            usage=None if head.options.include_usage else msgspec.UNSET,
        )

    def _timings(self, finished: ReplyFinished) -> Timings:
        head = self._head
        return timings(finished.report, render_seconds=head.render_seconds, tokenize_seconds=head.tokenize_seconds)
