"""Words that change by themselves: clocks, counters, ids.

``volatility`` is sure of it, having seen a line twice. ``volatile_line`` sees it once and goes by what the line says of
itself: rather than an instruction it leaves a clock where it is.
"""

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

LINE_CHARACTERS = 200
"""A longer line says more than the time."""
OTHER_WORDS = 10
"""As many words as a line may have beside those of the time."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAMES = _words("date time datetime timestamp clock started")
_NOW = _words("now today current currently")
_BESIDE = _words(
    "the is it and in at as of s my your user local system server session conversation day weekday week month year "
    "zone timezone"
)
_FIXED = _words(
    "cutoff knowledge training trained updated modified created released release version since until before after "
    "from expires expiry ends end starts due deadline limit copyright format formatted example"
)
"""A date beside one of these words stays what it is."""
_ZONE = re.compile(r"[A-Z]{2,5}|[A-Za-z]+/[A-Za-z_]+|[+-]\d{2}:?\d{2}")
_STRUCTURE = re.compile(r'["{}\[\]|;]|[.!?]\s+\S|,$')
"""What makes a line a part of something larger, such as JSON or a table, or more than one sentence."""

_MARKUP = re.compile(r"[*`#>]+(?=\s|$)|(?<!\S)[-*#>`]+")
_DIGIT = re.compile(r"\d")
_AMOUNT = r"\d+(?:[.,]\d+)*(?:\s?/\s?\d+(?:[.,]\d+)*)?\s?%?"
_COUNTER = re.compile(
    rf"{_AMOUNT}(?: [^\W\d]+){{1,4}} (?:so far|remaining|left|elapsed)\.?"
    rf"|(?:[^\W\d]+ ){{1,4}}(?:so far|remaining|left|elapsed|used)\s?[:=]\s?{_AMOUNT}(?: [^\W\d]+)?\.?"
    rf"|(?:turn|request|message|call)s? (?:number|count)\s?[:=]\s?{_AMOUNT}\.?",
    re.IGNORECASE,
)
_ID = r"[ _-](?:uu)?id"
_IDENTIFIED = re.compile(
    r"(?:session|request|conversation|thread|trace|message|turn|chat|run)"
    rf"(?:{_ID}\s?[:=]?\s?{_RANDOM.pattern}|(?:{_ID})?\s?[:=]?\s?(?:{_UUID.pattern}|[0-9a-f]{{8,}}))\.?",
    re.IGNORECASE,
)


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


def volatile_line(line: str) -> Volatile | None:
    """What a whole line tells that another request would tell otherwise; None for all that may be anything else."""
    if line.lstrip().startswith(BILLING_HEADER):
        return Volatile.IDENTIFIER
    if not _DIGIT.search(line) or len(line) > LINE_CHARACTERS:
        return None
    text = _MARKUP.sub("", line).strip(" \t\r\n*`")
    if _STRUCTURE.search(text) or text.count("<") != 2 * text.count("</"):
        return None
    if _IDENTIFIED.fullmatch(text):
        return Volatile.IDENTIFIER
    if _COUNTER.fullmatch(text):
        return Volatile.NUMBER
    return Volatile.CLOCK if _says_the_time(text) else None


def _says_the_time(text: str) -> bool:
    """Whether the line tells a date or a time, and says that it is that of now."""
    words = [word.strip(".,:/") for word in _WORD.findall(re.sub(r"(?<=[^\W\d]):(?=\S)", ": ", text))]
    clocks = [word for word in words if _CLOCK.fullmatch(word)]
    numbers = [word for word in words if _NUMBER.fullmatch(word)]
    exact = any(any(character.isdigit() for character in word) for word in clocks) or (clocks and numbers)
    rest = {
        word.lower()
        for word in words
        if word and not (_CLOCK.fullmatch(word) or _NUMBER.fullmatch(word) or _ZONE.fullmatch(word))
    }
    if not exact or len(rest) > OTHER_WORDS or rest & _FIXED:
        return False
    return bool(rest & _NOW) or (bool(rest & _NAMES) and rest <= _NAMES | _BESIDE)


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
