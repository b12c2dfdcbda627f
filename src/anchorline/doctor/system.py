"""What changed in the system prompts of two requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anchorline.doctor.comparison import At, Break, Held, Kind, Place, byte_length, excerpt
from anchorline.doctor.requests import Message
from anchorline.doctor.textdiff import TextChange, text_diff
from anchorline.prompt.volatile import BILLING_HEADER, Volatile, masked

VOLATILE_KINDS = {
    Volatile.CLOCK: Kind.CLOCK,
    Volatile.NUMBER: Kind.COUNTER,
    Volatile.IDENTIFIER: Kind.CHANGING_ID,
}


@dataclass(frozen=True, slots=True)
class Differences:
    """Breaks, and the pieces that are held in spite of them."""

    breaks: tuple[Break, ...] = ()
    held: tuple[Held, ...] = ()


def system_differences(old: Sequence[Message], new: Sequence[Message]) -> Differences:
    """As many leading system messages as both have, the first beside the first."""
    breaks: list[Break] = []
    held: list[Held] = []
    for number, (before, after) in enumerate(zip(old, new, strict=False)):
        if before == after:
            held.append(Held(At(number), after.text))
            continue
        found = content_differences(before, after, number, wording=Kind.SYSTEM_CHANGED)
        breaks += found.breaks
        held += found.held
    return Differences(tuple(breaks), tuple(held))


def content_differences(before: Message, after: Message, number: int, *, wording: Kind) -> Differences:
    """Each changed place of a message's content; ``wording`` is what changes of wording are."""
    diff = text_diff(before.content, after.content)
    breaks = tuple(_break(change, after, number, wording) for change in diff.changes)
    return Differences(breaks, tuple(Held(At(number, piece.offset), piece.text) for piece in diff.kept))


def _break(change: TextChange, message: Message, number: int, wording: Kind) -> Break:
    kind = wording if change.volatile is None else VOLATILE_KINDS[change.volatile]
    if change.line_text.startswith(BILLING_HEADER):
        kind = Kind.BILLING_HEADER
    byte = byte_length(message.content[: change.offset])
    return Break(
        kind=kind,
        at=At(number, change.offset),
        place=Place(part=number, role=message.role, line=change.line, byte=byte),
        before=excerpt(change.before),
        after=excerpt(change.after),
        shape=masked(change.line_text),
    )
