"""What a terminal may be given to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` without what would act on a terminal instead of being shown there."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
