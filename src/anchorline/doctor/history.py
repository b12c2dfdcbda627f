"""What changed in the history of two requests: one detector for each way of changing it.

Both histories are walked side by side. Where they stop agreeing, the first detector that knows the difference
says what it is and how to go on behind it. A difference that nothing knows ends the walk: from there on the new
request is another branch, and nothing behind it could have been restored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from anchorline.doctor.comparison import At, Break, Held, Kind, Place, byte_length, excerpt
from anchorline.doctor.requests import Call, Message
from anchorline.doctor.system import content_differences
from anchorline.prompt.messages import parse_arguments
from anchorline.prompt.tokenise import common_characters

TELLING_CHARACTERS = 16
"""A text shorter than this that stands elsewhere may stand there by chance."""
PRUNED_SHARE = 0.5
"""A message that kept less of its length was pruned; others were rewritten."""

_THOUGHTS = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>\s*", re.DOTALL)
_DIGITS = re.compile(r"\d")

Numbered = tuple[int, Message]
"""A message and its number in its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What a difference is, and how the walk goes on."""

    breaks: tuple[Break, ...]
    held: tuple[Held, ...] = ()
    old_taken: int
    """Messages of the earlier history that are done with."""
    new_taken: int
    moved: int | None = None
    """A later place in the new history whose message is done with, too."""


Detector = Callable[[Sequence[Message], Sequence[Numbered]], Repair | None]
"""(earlier history, new history), each from its first difference on; neither is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Both histories beside each other."""

    breaks: tuple[Break, ...]
    held: tuple[Held, ...]
    complete: bool
    """The earlier history was walked to its end, and the new one goes on."""


def walk(old: Sequence[Message], new: Sequence[Message], *, first: int) -> Walk:
    """Compare two histories; the first message of the new one has number ``first``."""
    left, right = list(old), [(first + index, message) for index, message in enumerate(new)]
    breaks: list[Break] = []
    held: list[Held] = []
    while left and right:
        number, message = right[0]
        if left[0] == message:
            held.append(Held(At(number), message.text))
            del left[0], right[0]
            continue
        repair = next(filter(None, (detect(left, right) for detect in DETECTORS)), None)
        if repair is None:
            break
        breaks += repair.breaks
        held += repair.held
        if repair.moved is not None:
            del right[repair.moved]
        del left[: repair.old_taken], right[: repair.new_taken]
    return Walk(breaks=tuple(breaks), held=tuple(held), complete=bool(old) and not left and bool(right))


def moved_message(old: Sequence[Message], new: Sequence[Numbered]) -> Repair | None:
    """A message that now stands behind what was said since, the others in their order; its digits may have changed."""
    reminder = old[0]
    if reminder.role not in ("system", "user") or len(reminder.content) < TELLING_CHARACTERS:
        return None
    place = next((index for index, (_, message) in enumerate(new) if _alike(message, reminder)), None)
    if place is None or all(message.role != "assistant" for _, message in new[:place]):
        return None
    if len(old) > 1 and old[1] != new[0][1]:
        return None
    number = new[place][0]
    moved = _break(Kind.REMINDER_MOVED, new[0], before=reminder.content, after=f"now message {number}")
    held = (Held(At(number), reminder.text),)
    return Repair(breaks=(moved,), held=held, old_taken=1, new_taken=0, moved=place)


def moved_text(old: Sequence[Message], new: Sequence[Numbered]) -> Repair | None:
    """A piece of a message that now stands in a later one; digits in it may have changed on the way."""
    before, (number, after) = old[0], new[0]
    if replace(before, content="") != replace(after, content=""):
        return None
    for start, piece in _removed(before.content, after.content):
        wanted = _DIGITS.sub("0", piece.strip())
        if len(wanted) < TELLING_CHARACTERS:
            continue
        for later, message in new[1:]:
            found = _DIGITS.sub("0", message.content).find(wanted)
            if found >= 0:
                byte = byte_length(after.content[:start])
                moved = _break(Kind.REMINDER_MOVED, new[0], before=piece, after=f"now in message {later}", byte=byte)
                moved = replace(moved, at=At(number, start))
                held = (Held(At(number, start), after.content[start:]), Held(At(later, found), piece))
                return Repair(breaks=(moved,), held=held, old_taken=1, new_taken=1)
    return None


def changed_turn(old: Sequence[Message], new: Sequence[Numbered]) -> Repair | None:
    """An assistant's turn that says the same without its reasoning, or with its arguments written otherwise."""
    before, (number, after) = old[0], new[0]
    if before.role != "assistant" or after.role != "assistant" or not (after.content or after.calls):
        return None
    thoughts = before.reasoning
    if before.content != after.content:
        inside = _THOUGHTS.match(before.content)
        if inside is None or before.content[inside.end() :] != after.content:
            return None
        thoughts = inside.group()
    if (before.reasoning != after.reasoning and after.reasoning) or not _same_calls(before.calls, after.calls):
        return None
    breaks, held = [], [Held(At(number), after.content)]
    if before.reasoning != after.reasoning or before.content != after.content:
        breaks.append(_break(Kind.REASONING_DROPPED, new[0], before=thoughts, field="reasoning"))
    behind = At(number, len(after.content) + 1)
    differing = [pair for pair in zip(before.calls, after.calls, strict=True) if pair[0] != pair[1]]
    if differing:
        breaks.append(_reserialised(*differing[0], new[0], behind))
    held += [Held(behind, right.arguments) for right in after.calls if right in before.calls]
    return Repair(breaks=tuple(breaks), held=tuple(held), old_taken=1, new_taken=1)


def volatile_text(old: Sequence[Message], new: Sequence[Numbered]) -> Repair | None:
    """A message in which only clocks, counters or ids changed, in a conversation that goes on behind it."""
    before, (number, after) = old[0], new[0]
    if replace(before, content="") != replace(after, content=""):
        return None
    if not set(old[1:]) & {message for _, message in new[1:]}:
        return None
    found = content_differences(before, after, number, wording=Kind.HISTORY_REWRITTEN)
    if any(each.kind is Kind.HISTORY_REWRITTEN for each in found.breaks):
        return None
    return Repair(breaks=found.breaks, held=found.held, old_taken=1, new_taken=1)


def gap(old: Sequence[Message], new: Sequence[Numbered]) -> Repair | None:
    """Messages that were taken out, put in or replaced, in front of some that both histories hold."""
    later = [message for _, message in new]
    matcher = SequenceMatcher(None, old, later, autojunk=False)
    for block in matcher.get_matching_blocks():
        text = sum(len(message.text) for message in old[block.a : block.a + block.size])
        if text >= TELLING_CHARACTERS:
            gone, come = old[: block.a], new[: block.b]
            if [message.role for message in gone] == [message.role for _, message in come]:
                breaks = [_replaced(before, after) for before, after in zip(gone, come, strict=True)]
            else:
                breaks = [_cut(gone, come, new[0])]
            return Repair(breaks=tuple(breaks), old_taken=block.a, new_taken=block.b)
    return None


DETECTORS: tuple[Detector, ...] = (moved_message, moved_text, changed_turn, volatile_text, gap)


def _replaced(before: Message, message: Numbered) -> Break:
    """One message in the place of another."""
    number, after = message
    start = common_characters(before.text, after.text)
    kind = Kind.HISTORY_PRUNED if len(after.text) < PRUNED_SHARE * len(before.text) else Kind.HISTORY_REWRITTEN
    byte = byte_length(after.text[:start])
    found = _break(kind, message, before=before.text[start:], after=after.text[start:], byte=byte)
    return replace(found, at=At(number, start))


def _cut(gone: Sequence[Message], come: Sequence[Numbered], message: Numbered) -> Break:
    """Messages in the place of others; ``message`` is the first that stands there now."""
    kind = Kind.HISTORY_REWRITTEN if come else Kind.HISTORY_PRUNED
    if {each.role for each in (*gone, *(each for _, each in come))} == {"system"}:
        kind = Kind.SYSTEM_CHANGED
    before, after = ("\n".join(each.text for each in side) for side in (gone, [each for _, each in come]))
    return _break(kind, message, before=before, after=after)


def _removed(before: str, after: str) -> list[tuple[int, str]]:
    """(place, piece) if ``after`` is ``before`` without one piece; two answers where its ends are alike."""
    gone = len(before) - len(after)
    found = []
    if gone > 0:
        tail = common_characters(before[::-1], after[::-1])
        for start in {len(after) - tail, common_characters(before, after)}:
            if before[:start] + before[start + gone :] == after:
                found.append((start, before[start : start + gone]))
    return found


def _alike(left: Message, right: Message) -> bool:
    """Whether they differ in digits at most."""
    return left.role == right.role and _DIGITS.sub("0", left.content) == _DIGITS.sub("0", right.content)


def _same_calls(before: Sequence[Call], after: Sequence[Call]) -> bool:
    """Whether the calls mean the same."""
    if [call.name for call in before] != [call.name for call in after]:
        return False
    pairs = zip(before, after, strict=True)
    return all(a == b or parse_arguments(a.arguments) == parse_arguments(b.arguments) for a, b in pairs)


def _reserialised(before: Call, after: Call, message: Numbered, at: At) -> Break:
    start = common_characters(before.arguments, after.arguments)
    shown = max(0, start - TELLING_CHARACTERS)
    found = _break(
        Kind.ARGUMENTS_RESERIALISED,
        message,
        before=before.arguments[shown:],
        after=after.arguments[shown:],
        field="arguments",
        byte=byte_length(after.arguments[:start]),
    )
    return replace(found, at=at)


def _break(
    kind: Kind, message: Numbered, *, before: str, after: str = "", field: str = "content", byte: int = 0
) -> Break:
    place = Place(part=message[0], role=message[1].role, field=field, byte=byte)
    return Break(kind=kind, at=At(message[0]), place=place, before=excerpt(before), after=excerpt(after))
