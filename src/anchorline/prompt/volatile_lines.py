"""Lines that do nothing but say how things are now: the time, what is used or left, an id.

A list of shapes, each of a whole line. What has none of them may be an instruction or a part of one, and is none.
"""

from __future__ import annotations

import re
from functools import cache

LINE_CHARACTERS = 200
"""A longer line says more than the time."""

_WEEKDAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_NUMERIC = r"\d{4}(?:-\d\d?-|/\d\d?/|\.\d\d?\.)\d\d?|\d\d?(?:-\d\d?-|/\d\d?/|\.\d\d?\.)\d{4}"
_DATE = rf"(?:{_WEEKDAY},? )?(?:{_NUMERIC}|(?:{_DAY} {_MONTH}|{_MONTH} {_DAY})(?:,? \d{{4}})?)"
_TIME = r"\d\d?:[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)?(?: ?[ap]m)?"
_OFFSET = r"[-+]\d\d?(?::?\d\d)?"
_ZONE = (
    rf"(?:Z|(?:UTC|GMT)?{_OFFSET}|UTC|GMT|BST|IST|MSK|JST|KST|SGT|HKT|CES?T|EES?T|WES?T|[ECMP][SD]T|AK[SD]T|AE[SD]T"
    r"|NZ[SD]T|(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc)(?:/[a-z_+-]+){1,2})"
)
_WHEN = (
    rf"(?:{_DATE}(?:(?:T|,? (?:at )?){_TIME})?(?: ?{_ZONE})?|{_TIME}(?: ?{_ZONE})?(?:,? (?:on )?{_DATE})?"
    rf"|{_WEEKDAY} {_MONTH} {{1,2}}{_DAY} {_TIME} (?:{_ZONE} )?\d{{4}}|1[5-9]\d{{8}}(?:\d{{3}})?)(?: \({_ZONE}\))?"
)
"""A date, a time, both, or seconds or milliseconds since 1970."""

_CLOCK = r"(?:date(?:(?: and |/|[ _-]?)time)?|timestamp)"
_WHOSE = r"(?:(?:the|today['’]?s|current|local|system|server)[ _-]){1,3}"
_LABEL = (
    rf"(?:{_CLOCK}|{_WHOSE}(?:{_CLOCK}|time)(?: now| today)?|today|now|(?:conversation|session|chat) started)"
    rf"(?: \({_ZONE}\))?"
)
_ELEMENT = r"(?:(?:current[_-]?|local[_-]?)?(?:date|time|datetime|timestamp)|now|today)"

_AMOUNT = r"\d+(?:[.,]\d+)*(?: ?/ ?\d+(?:[.,]\d+)*)?(?: ?%)?"
_UNIT = (
    r"(?:(?:(?:total|input|output|prompt|completion) )?tokens|context(?: window)?|requests|messages|turns|steps"
    r"|(?:tool )?calls)"
)
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_RANDOM = r"(?=\w{8})(?=\w*\d)[a-z0-9]+(?:_[a-z0-9]+)?"

_SHAPES = "|".join(
    [
        rf"{_LABEL} ?[:=] ?{_WHEN}\.?",
        rf"(?-i:(?=[A-Z])){_LABEL} is (?:now )?{_WHEN}\.?",
        rf"(?-i:It)(?: is|['’]s) (?:(?:now|currently) {_WHEN}|{_WHEN} (?:right )?now)\.?",
        rf"<(?P<element>{_ELEMENT})>{_WHEN}</(?P=element)>",
        rf"{_UNIT} (?:used|left|remaining|so far) ?[:=] ?{_AMOUNT}\.?",
        rf"{_AMOUNT} {_UNIT} (?:used|left|remaining|so far)\.?",
        rf"(?:turn|request|message) (?:number|count) ?[:=] ?{_AMOUNT}\.?",
        rf"(?:session|request|conversation|thread|trace|message|turn|chat|run)[ _-](?:uu)?id ?[:=] ?"
        rf"(?:{_UUID}|{_RANDOM})\.?",
    ]
)
_BILLING_HEADER = re.compile(r"x-anthropic-billing-header: ?\w+=[\w.-]*(?:; ?\w+=[\w.-]*)*;?", re.ASCII)
"""As Claude Code writes it."""

_BULLET = re.compile(r"[-*•] ")


@cache
def _shapes() -> re.Pattern[str]:
    """Compiled with the first line that is looked at: few commands look at any, and it takes long."""
    return re.compile(_SHAPES, re.IGNORECASE | re.ASCII)


def is_volatile_line(line: str) -> bool:
    """Whether another request would say another line here, for all that this one says; not where it is a part.

    An indented line belongs to the one above it, or is code.
    """
    if len(line) > LINE_CHARACTERS:
        return False
    line = line.removesuffix("\n").removesuffix("\r").rstrip(" \t")
    if _BILLING_HEADER.fullmatch(line):
        return True
    return _shapes().fullmatch(line[2 if _BULLET.match(line) else 0 :].replace("**", "")) is not None
