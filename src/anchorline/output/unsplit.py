"""Reasoning left in the content, between its tags, for clients that look for it there."""

from __future__ import annotations

from anchorline.output.events import (
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
)
from anchorline.output.format import ReasoningTags
from anchorline.output.parser import ReplyParser


class UnsplitReasoning:
    """Makes text again of the reasoning that another parser finds.

    ``opened`` tells that the prompt has opened a block, whose opening tag is then no part of the reply.
    """

    def __init__(self, parser: ReplyParser, tags: ReasoningTags, *, opened: bool) -> None:
        self._parser = parser
        self._tags = tags
        self._closing = f"{tags.before_end}{tags.end}{tags.after_end}"
        self._opened = opened
        self._reasoning: dict[int, bool] = {}
        """Choice → whether it is in a block; without those that have said nothing yet."""

    def feed(self, event: ReplyEvent) -> list[ReplyEvent]:
        return [made for parsed in self._parser.feed(event) for made in self._unsplit(parsed)]

    def _unsplit(self, event: ReplyEvent) -> list[ReplyEvent]:
        match event:
            case ReplyFinished() | ReplyFailed() | ToolCallDelta() | ToolCallFinished():
                return [event]
            case ReasoningDelta():
                begun = self._reasoning.get(event.choice, self._opened)
                self._reasoning[event.choice] = True
                return [TextDelta(event.choice, ("" if begun else self._tags.begin) + event.text, event.tokens)]
            case TextDelta(text="") | ChoiceFinished():
                return [event]
        inside = self._reasoning.get(event.choice, False)
        self._reasoning[event.choice] = False
        return [TextDelta(event.choice, self._closing, ()), event] if inside else [event]
