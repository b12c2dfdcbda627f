"""Tokens to text: whole UTF-8, stop strings, and the events the wire formats are made from."""

from anchorline.output.reply import (
    ChoiceFinished,
    Reply,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    TextDelta,
    TokenText,
)
from anchorline.output.stops import StopFinder
from anchorline.output.text import TextDecoder

__all__ = [
    "ChoiceFinished",
    "Reply",
    "ReplyEvent",
    "ReplyFailed",
    "ReplyFinished",
    "StopFinder",
    "TextDecoder",
    "TextDelta",
    "TokenText",
]
