"""Which letters beyond ASCII may stand for each other, unit by unit of how they are written.

A letter is written as a row of units: the bytes of its UTF-8 form, or the digits of a ``\\uXXXX`` escape. Letters
that begin with the same units are a tree; a unit may be exchanged for its siblings under which the same grows.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache

Units = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Utf8:
    """The bytes of a character."""

    def following(self, units: Units) -> range:
        """What may come after the first unit."""
        return range(0x80, 0xC0)

    def complete(self, units: Units) -> bool:
        """Whether ``units`` are a whole character."""
        lead = units[0]
        return len(units) == (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4)

    def character(self, units: Units) -> str:
        """The character of a whole row, or "" when there is none."""
        return bytes(units).decode("utf-8", "ignore")


@dataclass(frozen=True, slots=True)
class Escape:
    """The four hexadecimal digits of an escape, as numbers."""

    def following(self, units: Units) -> range:
        return range(16)

    def complete(self, units: Units) -> bool:
        return len(units) == 4

    def character(self, units: Units) -> str:
        code = int("".join(f"{unit:x}" for unit in units), 16)
        return chr(code) if code > 0x7F else ""  # ASCII is escaped for a reason: quotes, controls, angle brackets


@cache
def exchangeable(writing: Utf8 | Escape, before: Units, unit: int) -> Units:
    """The units, ``unit`` among them, of which any may stand after ``before`` and leave a letter of the same script.

    Only ``unit`` itself where it is to stay: at the beginning, and where not all that begins like this are letters.
    """
    kind = _kind(writing, (*before, unit)) if before else ""
    if not kind:
        return (unit,)
    return tuple(other for other in writing.following(before) if _kind(writing, (*before, other)) == kind)


@cache
def _kind(writing: Utf8 | Escape, units: Units) -> str:
    """The script that all characters beginning with ``units`` are letters of, "digits" for digits, else ""."""
    if writing.complete(units):
        return _character_kind(writing.character(units))
    kinds = {_kind(writing, (*units, unit)) for unit in writing.following(units)}
    return kinds.pop() if len(kinds) == 1 else ""


def _character_kind(character: str) -> str:
    if character.isdecimal():
        return "digits"
    if not character.isalpha():
        return ""
    return unicodedata.name(character, "unnamed").split(" ")[0].split("-")[0]
