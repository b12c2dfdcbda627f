"""Words that change by themselves: clocks, counters, ids; seen by comparing a line with what it was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum


class Volatile(StrEnum):
    CLOCK = "clock"
    NUMBER = "number"
    IDENTIFIER = "identifier"


_TIME = r"\d{1,2}:[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)?"
_DATE = r"\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2(?:\d{4}|\d{2})"
_CLOCK = re.compile(
    rf"(?:{_TIME}|(?:{_DATE})(?:[T_]{_TIME}(?:Z|[-+]\d{{2}}:?\d{{2}})?)?|1[5-9]\d{{8}}(?:\d{{3}})?"
    r"|(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
    r"|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|[ap]m)(?:Z|[ap]m)?",
    re.IGNORECASE,
)
"""Times, dates, seconds and milliseconds since 1970, and the words of a date."""

_CLOCK_INSIDE = re.compile(rf"(?<!\d)(?:{_TIME}|{_DATE})(?!\d)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_RANDOM = re.compile(r"(?=.*\d)[A-Za-z0-9_+/-]{8,}")
_WORD = re.compile(r"[\w:./+-]+")

BILLING_HEADER = "x-anthropic-billing-header"
"""Begins a system block or line of Claude Code's that differs per request or session and says nothing to a model."""


def masked(line: str) -> str:
    """The line with the same mark for every word that may change by itself: equal for lines that differ in those."""
    return _WORD.sub(lambda word: _mask(word.group()), line)


def volatility(changes: Sequence[tuple[str, str]]) -> Volatile | None:
    """What the changed words of one line are, as (earlier, later); None when some are wording.

    A number beside a clock is part of it (``May 3 14:05``), one beside an id part of that.
    """
    kinds = {_of_words(before, after) for before, after in changes}
    if not kinds or None in kinds or kinds >= {Volatile.CLOCK, Volatile.IDENTIFIER}:
        return None
    kinds.discard(Volatile.NUMBER)
    return next(iter(kinds), Volatile.NUMBER)


def _mask(word: str) -> str:
    bare = word.strip(".,;")
    if _CLOCK.fullmatch(bare) or _UUID.search(bare) or _RANDOM.fullmatch(bare):
        return "0"
    return _NUMBER.sub("0", word)


def _of_words(before: str, after: str) -> Volatile | None:
    before, after = before.strip(".,;"), after.strip(".,;")
    if _CLOCK.fullmatch(before) and _CLOCK.fullmatch(after):
        return Volatile.CLOCK
    if _UUID.search(before) and _UUID.search(after):
        return Volatile.IDENTIFIER
    shape = _NUMBER.sub("0", before)
    if "0" in shape and shape == _NUMBER.sub("0", after):
        return Volatile.CLOCK if _CLOCK_INSIDE.search(before) else Volatile.NUMBER
    if _RANDOM.fullmatch(before) and _RANDOM.fullmatch(after):
        return Volatile.IDENTIFIER
    return None
