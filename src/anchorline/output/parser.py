"""Finding structure in text: the face of every reply parser, and the one that finds none."""

from __future__ import annotations

from typing import Protocol

from anchorline.output.events import ReplyEvent


class ReplyParser(Protocol):
    """Turns the text events of one call into structured ones. Keeps state: feed it each event once, in order.

    However the text is split into events, the structured events say the same when put together.
    """

    def feed(self, event: ReplyEvent) -> list[ReplyEvent]:
        """The events to put in the place of ``event``; may be none while it is undecided what a text is."""
        ...


class PlainParser:
    """All text is content."""

    def feed(self, event: ReplyEvent) -> list[ReplyEvent]:
        return [event]
