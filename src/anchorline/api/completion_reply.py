"""``POST /v1/completions``: the reply, streamed and whole (both have the same shape)."""

from __future__ import annotations

import msgspec

from anchorline.api.logprobs import TextLogprobs, text_logprobs
from anchorline.api.reply import ReplyHead, collect, token_ids
from anchorline.api.usage import Timings, Usage, timings, usage
from anchorline.output.reply import ChoiceFinished, ReplyEvent, ReplyFinished, TextDelta


class TextChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    tokens: list[int] | msgspec.UnsetType = msgspec.UNSET


class TextCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class CompletionWriter:
    """Writes one text completion. ``chunks`` keeps state: feed it each event once, in order."""

    def __init__(self, head: ReplyHead) -> None:
        self._head = head
        self._offsets: dict[int, int] = {}
        self._held: TextCompletion | None = None

    def chunks(self, event: TextDelta | ChoiceFinished | ReplyFinished) -> list[msgspec.Struct]:
        """A finishing chunk is held back by one event, so that the last one can carry the timings."""
        if isinstance(event, ReplyFinished):
            return self._end(event)
        out: list[msgspec.Struct] = [] if self._held is None else [self._held]
        self._held = None
        if isinstance(event, TextDelta):
            out.append(self._chunk(self._delta(event)))
        else:
            self._held = self._chunk(TextChoice(index=event.choice, text="", finish_reason=event.reason.value))
        return out

    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> TextCompletion:
        options = self._head.options
        reply = self._chunk(
            *(
                TextChoice(
                    index=index,
                    text=choice.text,
                    logprobs=None
                    if options.logprobs is None
                    else text_logprobs(choice.tokens, tokenizer=self._head.tokenizer, offset=0),
                    finish_reason=choice.finish_reason,
                    tokens=token_ids(tuple(choice.tokens), wanted=options.return_tokens),
                )
                for index, choice in enumerate(collect(events, choices=options.choices))
            )
        )
        reply.usage = usage(finished.report)
        reply.timings = self._timings(finished)
        return reply

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

    def _delta(self, event: TextDelta) -> TextChoice:
        options = self._head.options
        offset = self._offsets.get(event.choice, 0)
        self._offsets[event.choice] = offset + len(event.text)
        return TextChoice(
            index=event.choice,
            text=event.text,
            logprobs=None
            if options.logprobs is None
            else text_logprobs(event.tokens, tokenizer=self._head.tokenizer, offset=offset),
            tokens=token_ids(event.tokens, wanted=options.return_tokens),
        )

    def _chunk(self, *choices: TextChoice) -> TextCompletion:
        head = self._head
        return TextCompletion(
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
