"""gpt-oss' Harmony: messages with a channel and perhaps a recipient.

``<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.NAME
<|constrain|>json<|message|>{…}<|call|>``. Analysis is reasoning, what is addressed to a function is a call,
everything else is text. The first header begins in the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from anchorline.output.format import CallMode, CallTag, ReasoningTags
from anchorline.output.formats.grammar import JSON_ANSWER, Grammar
from anchorline.output.formats.json_calls import json_arguments
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Broken, Source, Steps
from anchorline.output.markers import Markers

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"

_HEADER_LIMIT = 400
_HEADER_END = Markers((MESSAGE, END, RETURN, CALL, START))
_BODY_END = Markers((END, RETURN, CALL, START, CHANNEL))
_HEADER_STARTS = (CHANNEL, START, MESSAGE, CONSTRAIN, " to=", "to=")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_PLAIN = Grammar(calls={}, thinking=())


@dataclass(frozen=True, slots=True)
class _Header:
    recipient: str | None
    channel: str | None

    @classmethod
    def of(cls, text: str) -> _Header:
        recipient, channel = _RECIPIENT.search(text), _CHANNEL.search(text)
        return cls(recipient and recipient.group(1), channel and channel.group(1))


def _read(source: Source, sink: Sink) -> Steps[None]:
    return _Reading(source, sink).run()


class _Reading:
    """One reply under way."""

    def __init__(self, source: Source, sink: Sink) -> None:
        self._source = source
        self._sink = sink

    def run(self) -> Steps[None]:
        source = self._source
        _, started, behind = self._sink.context.prompt_end.rpartition(START)
        opened = behind if started else ""
        if MESSAGE in opened:
            marker = yield from self._body(_Header.of(opened))
        else:
            source.record()
            marker = yield from source.accept_any(_HEADER_STARTS)
            if marker is None:
                source.recorded()
                yield from _PLAIN.read(source, self._sink)
                return
            marker = yield from self._message(marker, opened)
        while marker is not None:
            marker = yield from self._next(marker)

    def _next(self, marker: str) -> Steps[str | None]:
        """Read what follows ``marker``: a message, or stray text. Returns the next marker; None at the end."""
        source = self._source
        if marker not in (START, CHANNEL):
            self._sink.content.cut()
            return (yield from source.pour(_BODY_END, self._sink.content.feed))
        source.record(behind=len(marker))
        return (yield from self._message(marker, ""))

    def _message(self, beginning: str, opened: str) -> Steps[str | None]:
        """Read a message whose header begins with ``beginning``, behind what was ``opened`` in the prompt."""
        source, sink = self._source, self._sink
        text = beginning
        if beginning != MESSAGE:
            try:
                rest, marker = yield from source.up_to(_HEADER_END, limit=_HEADER_LIMIT)
                if marker != MESSAGE:
                    raise Broken(f"a header ends with {marker!r}")
            except Broken as broken:
                return (yield from self._headless(broken))
            text += rest
        sink.content.cut()
        return (yield from self._body(_Header.of(opened + text)))

    def _headless(self, broken: Broken) -> Steps[str | None]:
        """What looked like a header is text; at the end of the reply it is nothing."""
        if self._source.ended and self._source.position == len(self._source.buffer):
            self._source.recorded()
            return None
        self._sink.broken(str(broken), self._sink.content)
        return (yield from self._source.pour(_BODY_END, self._sink.content.feed))

    def _body(self, header: _Header) -> Steps[str | None]:
        """Read the body of a message; returns the marker behind it."""
        source, sink = self._source, self._sink
        text: Callable[[str], None] = sink.content.feed
        if header.recipient is not None and sink.context.calls is CallMode.NONE:
            text(source.recorded())
        elif header.recipient is not None:
            yield from self._call(header.recipient)
        elif header.channel == "analysis":
            text = sink.reasoning.feed
        elif sink.context.calls is CallMode.JSON:
            yield from source.skip_space()
            start = yield from source.peek()
            if start and start in JSON_ANSWER.starts:
                source.record()
                yield from self._answer()
        source.recorded()
        marker = yield from source.pour(_BODY_END, text)
        sink.reasoning.cut()
        return marker

    def _call(self, recipient: str) -> Steps[None]:
        try:
            yield from json_arguments(self._source, self._sink, recipient.removeprefix("functions."))
        except Broken as broken:
            self._sink.broken(str(broken), self._sink.content)

    def _answer(self) -> Steps[None]:
        try:
            yield from JSON_ANSWER.read(self._source, self._sink)
        except Broken as broken:
            self._sink.broken(str(broken), self._sink.content)


def _tag(tool: str) -> CallTag:
    trigger = f"{CHANNEL}commentary to=functions."
    return CallTag(begin=f"{trigger}{tool} {CONSTRAIN}json{MESSAGE}", end=CALL, trigger=trigger)


HARMONY = ReaderFormat(
    name="harmony",
    spelled=frozenset({START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL}),
    read=_read,
    tag=_tag,
    reasoning=ReasoningTags(
        begin=f"{CHANNEL}analysis{MESSAGE}",
        end=END,
        after_end=f"{START}assistant",
        before_answer=f"{CHANNEL}final{MESSAGE}",
    ),
)
