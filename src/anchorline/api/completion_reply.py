"""``POST /v1/completions``: the reply, streamed and whole (both have the same shape)."""

from __future__ import annotations

import msgspec

from anchorline.api.logprobs import TextLogprobs, text_logprobs
from anchorline.api.reply import Chunk, ChunkWriter, ReplyHead, collect, token_ids
from anchorline.output.events import ChoiceEvent, ChoiceFinished, ReplyEvent, ReplyFinished, TextDelta


class TextChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET


class CompletionWriter(ChunkWriter):
    """Writes one text completion; a chunk and a whole reply have the same shape."""

    chunk_object = "text_completion"

    def __init__(self, head: ReplyHead) -> None:
        super().__init__(head)
        self._offsets: dict[int, int] = {}

    def deltas(self, event: ChoiceEvent) -> list[TextChoice]:
        return [self._delta(event)] if isinstance(event, TextDelta) else []

    def finishing(self, event: ChoiceFinished) -> TextChoice:
        return TextChoice(index=event.choice, text="", finish_reason=event.reason.value)

    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> Chunk:
        options = self.head.options
        reply = self.chunk(
            [
                TextChoice(
                    index=index,
                    text=choice.text,
                    logprobs=None
                    if options.logprobs is None
                    else text_logprobs(choice.tokens, tokenizer=self.head.tokenizer, offset=0),
                    finish_reason=choice.finish_reason,
                    tokens=token_ids(choice.tokens, wanted=options.return_tokens),
                )
                for index, choice in enumerate(collect(events, choices=options.choices))
            ]
        )
        return self.complete(reply, finished)

    def _delta(self, event: TextDelta) -> TextChoice:
        options = self.head.options
        offset = self._offsets.get(event.choice, 0)
        self._offsets[event.choice] = offset + len(event.text)
        return TextChoice(
            index=event.choice,
            text=event.text,
            logprobs=None
            if options.logprobs is None
            else text_logprobs(event.tokens, tokenizer=self.head.tokenizer, offset=offset),
            tokens=token_ids(event.tokens, wanted=options.return_tokens),
        )
