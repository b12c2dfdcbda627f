"""The common shape of replies: reasoning, text and calls one after the other, told apart by markers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anchorline.output.format import CallMode
from anchorline.output.formats.json_calls import bare_calls
from anchorline.output.formats.machine import Read
from anchorline.output.formats.sink import Sink, TrimmedText
from anchorline.output.formats.source import Broken, Source, Steps
from anchorline.output.markers import Markers


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around reasoning."""

    open: str
    close: str


THINK = Thinking("<think>", "</think>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """Calls without a marker: text that begins with one of ``starts`` where a part of the reply begins."""

    starts: str
    read: Read


JSON_ANSWER = Bare(starts="{[", read=bare_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """How one family writes its replies.

    A *part* begins at the start of the reply and behind every block. Reasoning opens only there: a
    tag in the middle of a text is text. Calls are found anywhere in the text, and with
    ``calls_in_thinking`` also in reasoning that the model forgot to close; that is only sensible
    where the markers are tokens of their own, which are not talked about.
    """

    calls: Mapping[str, Read]
    """Marker → reader of what follows it."""
    bare: Bare | None = None
    thinking: tuple[Thinking, ...] = (THINK,)
    calls_in_thinking: bool = False
    ignored: tuple[str, ...] = field(default=())
    """Markers around the answer that say nothing."""

    def read(self, source: Source, sink: Sink) -> Steps[None]:
        """Read a reply. Implements ``machine.Read``."""
        return _Reading(self, source, sink).run()


class _Reading:
    """One reply under way."""

    def __init__(self, grammar: Grammar, source: Source, sink: Sink) -> None:
        mode = sink.context.calls
        self._source = source
        self._sink = sink
        self._calls = {} if mode is CallMode.NONE else grammar.calls
        self._bare = {CallMode.NONE: None, CallMode.AUTO: grammar.bare, CallMode.JSON: JSON_ANSWER}[mode]
        self._thinking = {thinking.open: thinking for thinking in grammar.thinking}
        self._ignored = grammar.ignored
        self._at_start = (*self._thinking, *(thinking.close for thinking in grammar.thinking))
        """Behind reasoning that the template opened and the model closes at once, or not at all."""
        self._anywhere = Markers((*self._calls, *grammar.ignored))
        self._in_thinking = self._calls if grammar.calls_in_thinking else {}

    def run(self) -> Steps[None]:
        prompt = self._sink.context.prompt_end.rstrip()
        for thinking in self._thinking.values():
            if prompt.endswith(thinking.open) and not (yield from self._answers_at_once()):
                yield from self._think(thinking)
        while True:
            if self._sink.content.fresh and (yield from self._start()):
                continue
            marker = yield from self._source.pour(self._anywhere, self._sink.content.feed)
            if marker is None:
                return
            yield from self._block(marker, self._sink.content)

    def _start(self) -> Steps[bool]:
        """Read what may stand only at the start of a part; False when there is nothing of that kind."""
        source, sink = self._source, self._sink
        yield from source.skip_space(sink.content.feed)
        marker = yield from source.accept_any(self._at_start)
        if marker in self._thinking:
            yield from self._think(self._thinking[marker])
        elif marker is not None:
            sink.content.cut()
        elif self._bare is not None and (yield from self._bare_follows(self._bare)):
            source.record()
            yield from self._call(self._bare.read, sink.content, announced=self._bare is JSON_ANSWER)
        else:
            return False
        return True

    def _answers_at_once(self) -> Steps[bool]:
        """Whether a forced call comes although the template has opened a block of reasoning."""
        if self._bare is not JSON_ANSWER:
            return False
        yield from self._source.skip_space()
        return (yield from self._bare_follows(JSON_ANSWER))

    def _bare_follows(self, bare: Bare) -> Steps[bool]:
        character = yield from self._source.peek()
        return bool(character) and character in bare.starts

    def _block(self, marker: str, text: TrimmedText) -> Steps[None]:
        """Read what ``marker`` begins, which goes to ``text`` when it is no call."""
        if marker in self._ignored:
            self._sink.content.cut()
            return
        self._source.record(behind=len(marker))
        yield from self._call(self._calls[marker], text)

    def _call(self, read: Read, text: TrimmedText, *, announced: bool = True) -> Steps[None]:
        """Read a call; one that nothing announced may well be something else."""
        try:
            yield from read(self._source, self._sink)
        except Broken as broken:
            self._sink.broken(str(broken), text, expected=announced)
        self._source.recorded()

    def _think(self, thinking: Thinking) -> Steps[None]:
        """Read reasoning to its end; a model may open again what the template has opened."""
        source, sink = self._source, self._sink
        sink.content.cut()
        yield from source.skip_space()
        yield from source.accept(thinking.open)
        markers = Markers((thinking.close, *self._in_thinking))
        before = sink.calls
        while sink.calls == before:
            marker = yield from source.pour(markers, sink.reasoning.feed)
            if marker is None or marker == thinking.close:
                break
            yield from self._block(marker, sink.reasoning)
        sink.reasoning.cut()
