"""What a reply is made of, in the order it happens; every wire format is written from these.

``Reply`` makes TextDelta, ChoiceFinished, ReplyFinished and ReplyFailed out of tokens. A ``ReplyParser``
then finds reasoning and tool calls in the text and puts their events in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from anchorline.engine.request import CallReport, FinishReason
from anchorline.errors import AnchorlineError
from anchorline.llama.interface import TokenLogprob


@dataclass(frozen=True, slots=True)
class TokenText:
    """One generated token with its bytes; ``logprob`` is None when none was asked for."""

    token: int
    text_bytes: bytes
    logprob: float | None
    alternatives: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one choice, and the tokens whose text ends in it.

    A token is reported once, with the delta that completes its text. Text may be empty when only
    tokens without text of their own are left at the end.
    """

    choice: int
    text: str
    tokens: tuple[TokenText, ...]


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text of the reasoning that comes before or between the parts of an answer. Tokens as in TextDelta."""

    choice: int
    text: str
    tokens: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A tool call whose name is known; ``call`` counts the calls of the choice from 0."""

    choice: int
    call: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a call's arguments. Put together they are the text of one JSON object. Tokens as in TextDelta."""

    choice: int
    call: int
    arguments: str
    tokens: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A call is complete. Calls follow one another; none begins before the last has finished."""

    choice: int
    call: int


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """A choice ended; ``stop_string`` is the one that was found, or None. ``calls`` complete ones were made.

    ``written_ids`` are the ids that the model itself wrote into its calls, None for one without; () if there are none.
    """

    choice: int
    reason: FinishReason
    stop_string: str | None
    calls: int = 0
    written_ids: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyFinished:
    """The last event of a call that went well."""

    report: CallReport


@dataclass(frozen=True, slots=True)
class ReplyFailed:
    """The last event of a call that failed or was cancelled; ``report`` is None when it never began."""

    error: AnchorlineError
    report: CallReport | None = None


ChoiceEvent = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta | ToolCallFinished | ChoiceFinished
"""What happens to one choice."""

ReplyEvent = ChoiceEvent | ReplyFinished | ReplyFailed
