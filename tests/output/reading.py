"""Replies read by a format, put together and checked for a valid order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from anchorline.engine.request import FinishReason
from anchorline.output.events import (
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
    TokenText,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from anchorline.output.format import CallMode, ReplyContext, ReplyFormat

WEATHER: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "limits": {"type": "array", "items": {"type": "number"}},
        "options": {"type": "object"},
        "unit": {"type": ["string", "null"]},
    },
}
TOOLS: Mapping[str, Mapping[str, Any]] = {"get_weather": WEATHER, "now": {}, "python": {}}

Part = tuple[str, str] | tuple[str, str, str]
"""("text" | "reasoning", text) or ("call" | "open call", name, arguments)."""


@dataclass
class Reading:
    """What a reply came to."""

    parts: list[Part] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    finished: ChoiceFinished | None = None

    @property
    def content(self) -> str:
        return "".join(part[1] for part in self.parts if part[0] == "text")

    @property
    def reasoning(self) -> str:
        return "".join(part[1] for part in self.parts if part[0] == "reasoning")

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """Name and arguments of the complete calls."""
        return [(part[1], json.loads(part[2])) for part in self.parts if len(part) == 3 and part[0] == "call"]


def context(
    calls: CallMode = CallMode.AUTO, prompt_end: str = "", tools: Mapping[str, Mapping[str, Any]] = TOOLS
) -> ReplyContext:
    numbers = count()
    return ReplyContext(prompt_end=prompt_end, tools=tools, calls=calls, new_call_id=lambda: f"call_{next(numbers)}")


def read(
    reply_format: ReplyFormat,
    text: str | Sequence[str],
    *,
    calls: CallMode = CallMode.AUTO,
    prompt_end: str = "",
    reason: FinishReason = FinishReason.STOP,
    tools: Mapping[str, Mapping[str, Any]] = TOOLS,
) -> Reading:
    """Read ``text``, or its pieces, each of which comes as one token."""
    parser = reply_format.parser(context(calls, prompt_end, tools))
    pieces = [text] if isinstance(text, str) else text
    events: list[ReplyEvent] = []
    for number, piece in enumerate(pieces):
        events += parser.feed(TextDelta(0, piece, (TokenText(number, piece.encode(), None, ()),)))
    events += parser.feed(ChoiceFinished(0, reason, None))
    reading = put_together(events)
    assert [token.token for token in reading.tokens] == list(range(len(pieces))), "every token once, in order"
    return reading


def put_together(events: Sequence[ReplyEvent]) -> Reading:
    """The events of one choice as parts. Fails when they are in no valid order."""
    reading, calls, open_call = Reading(), 0, False
    parts: list[tuple[list[str], list[str]]] = []
    """(what comes before the text, pieces of the text)"""

    def part(head: list[str]) -> list[str]:
        if not parts or parts[-1][0] != head:
            parts.append((head, []))
        return parts[-1][1]

    for event in events:
        assert reading.finished is None, "nothing follows the end"
        match event:
            case TextDelta() | ReasoningDelta():
                reading.tokens += event.tokens
                if event.text:
                    assert not open_call
                    part(["text" if isinstance(event, TextDelta) else "reasoning"]).append(event.text)
            case ToolCallStarted(call=call, id=identity, name=name):
                assert not open_call
                assert (call, identity) == (calls, f"call_{calls}")
                open_call = True
                parts.append((["open call", name], []))
            case ToolCallDelta(call=call, arguments=arguments, tokens=tokens):
                assert open_call
                assert call == calls
                assert arguments
                reading.tokens += tokens
                parts[-1][1].append(arguments)
            case ToolCallFinished(call=call):
                assert open_call
                assert call == calls
                assert isinstance(json.loads("".join(parts[-1][1])), dict)
                parts[-1][0][0] = "call"
                open_call = False
                calls += 1
            case ChoiceFinished():
                assert event.calls == calls
                reading.finished = event
            case _:
                raise AssertionError(event)
    assert reading.finished is not None
    if open_call:
        assert reading.finished.reason is FinishReason.LENGTH
    reading.parts = [_part(*head, "".join(texts)) for head, texts in parts]
    return reading


def _part(*fields: str) -> Part:
    return (fields[0], fields[1]) if len(fields) == 2 else (fields[0], fields[1], fields[2])


def letters(text: str) -> list[str]:
    """A token per character."""
    return list(text)
