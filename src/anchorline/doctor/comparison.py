"""What comparing a request with the one it continues yields: breaks, and what both of them hold.

    old   tools | system ─── 14:05 ─── … | user | assistant | tool |
    new   tools | system ─── 14:07 ─── … | user | assistant | tool | assistant | tool |
                             ^ break    └──────── held ────────────┘

What is held behind a break is what has to be prefilled again for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from anchorline.terminal import printable

TOOLS = -1
"""The number of the tools among the parts of a request; messages are numbered from 0."""

EXCERPT_CHARACTERS = 80
"""As much of each side of a difference as is shown."""


class Kind(StrEnum):
    """The faults that are told apart."""

    CLOCK = "clock"
    COUNTER = "counter"
    CHANGING_ID = "changing-id"
    SYSTEM_CHANGED = "system-changed"
    BILLING_HEADER = "billing-header"
    TOOLS_REORDERED = "tools-reordered"
    TOOLS_CHANGED = "tools-changed"
    REMINDER_MOVED = "reminder-moved"
    HISTORY_REWRITTEN = "history-rewritten"
    HISTORY_PRUNED = "history-pruned"
    ARGUMENTS_RESERIALISED = "arguments-reserialised"
    REASONING_DROPPED = "reasoning-dropped"
    TOOLS_BEHIND_HISTORY = "tools-behind-history"
    SIDE_CALL = "side-call"


@dataclass(frozen=True, slots=True, order=True)
class At:
    """A position in a request: a part, and characters of a message's content or tools before it."""

    part: int
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a difference begins, in the words of the request."""

    part: int
    role: str
    """The message's role, or ``tools``."""
    field: str = "content"
    """``content``, ``reasoning``, ``arguments``, or the name of a tool."""
    line: int | None = None
    """Line of the field, from 1."""
    byte: int = 0
    """UTF-8 bytes of the field before the difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One difference that keeps what lies behind it from being restored."""

    kind: Kind
    at: At
    place: Place
    before: str
    """What stood there in the earlier request; an excerpt, "" for nothing."""
    after: str
    shape: str = ""
    """The line that changed, with a mark for every word that may change by itself: tells two clocks apart."""


@dataclass(frozen=True, slots=True)
class Held:
    """A piece of the new request that the earlier one holds too."""

    at: At
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two requests beside each other."""

    breaks: tuple[Break, ...]
    held: tuple[Held, ...]
    complete: bool
    """The new request goes on from the end of the earlier one, apart from the breaks."""


def excerpt(text: str, start: int = 0) -> str:
    """The text from ``start``, on one line, without control characters, and cut to its limit."""
    shown = " ".join(text[start : start + 4 * EXCERPT_CHARACTERS].split())
    if len(shown) > EXCERPT_CHARACTERS or start + 4 * EXCERPT_CHARACTERS < len(text):
        shown = shown[: EXCERPT_CHARACTERS - 1] + "…"
    return printable(shown)


def byte_length(text: str) -> int:
    """UTF-8 bytes; a lone surrogate, which JSON can hold, counts as three."""
    return len(text.encode("utf-8", "surrogatepass"))


def common_items(left: Sequence[object], right: Sequence[object]) -> int:
    """How many items both begin with."""
    shared = min(len(left), len(right))
    return next((index for index in range(shared) if left[index] != right[index]), shared)
