"""Running a format's reader over the text events of a reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anchorline.engine.request import FinishReason
from anchorline.output.events import ChoiceFinished, ReplyEvent, TextDelta
from anchorline.output.format import THINK_TAGS, CallTag, ReasoningTags, ReplyContext
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Source, Steps
from anchorline.output.parser import ReplyParser

Read = Callable[[Source, Sink], Steps[None]]
"""Reads all of a reply. Never raises."""


class _Choice:
    """One choice: its text, what was found in it, and the reader between the two."""

    __slots__ = ("_reader", "_sink", "_source", "_taken")

    def __init__(self, choice: int, context: ReplyContext, read: Read) -> None:
        self._source = Source()
        self._sink = Sink(choice, self._source, context)
        self._reader = read(self._source, self._sink)
        self._taken = 0

    def feed(self, delta: TextDelta) -> list[ReplyEvent]:
        self._taken += len(delta.text)
        self._sink.take(delta.text, delta.tokens, self._taken)
        if delta.text:
            self._source.add(delta.text)
            next(self._reader)
        return self._sink.drain()

    def finish(self, finished: ChoiceFinished) -> list[ReplyEvent]:
        self._source.ended = True
        self._sink.cut_short = finished.reason is FinishReason.LENGTH
        for _ in self._reader:
            raise AssertionError("a reader waits for text that will not come")
        self._sink.finish(finished)
        return self._sink.drain()


class FormatParser:
    """Implements ``ReplyParser`` by one reader per choice."""

    def __init__(self, context: ReplyContext, read: Read) -> None:
        self._context = context
        self._read = read
        self._choices: dict[int, _Choice] = {}

    def feed(self, event: ReplyEvent) -> list[ReplyEvent]:
        if isinstance(event, TextDelta):
            return self._choice(event.choice).feed(event)
        if isinstance(event, ChoiceFinished):
            events = self._choice(event.choice).finish(event)
            del self._choices[event.choice]
            return events
        return [event]

    def _choice(self, choice: int) -> _Choice:
        if choice not in self._choices:
            self._choices[choice] = _Choice(choice, self._context, self._read)
        return self._choices[choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderFormat:
    """A ``ReplyFormat`` made of a reader."""

    name: str
    spelled: frozenset[str]
    read: Read
    tag: Callable[[str], CallTag] | None = None
    reasoning: ReasoningTags | None = THINK_TAGS

    def parser(self, context: ReplyContext) -> ReplyParser:
        return FormatParser(context, self.read)

    def call_tag(self, tool: str) -> CallTag | None:
        return None if self.tag is None else self.tag(tool)
