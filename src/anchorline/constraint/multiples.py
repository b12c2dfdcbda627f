"""What a schema's ``multipleOf`` costs, told before anything is compiled.

llguidance tells multiples of a number apart by an automaton with a state for each remainder. It makes all of them
at once, and nothing interrupts it: multiples of 999,983 take half a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from math import isfinite, lcm
from typing import Any

MOST_REMAINDERS = 100_000
"""Most that the numbers of one schema may have together; they take about a second here."""


def too_many_remainders(schema: Any) -> bool:
    """Whether the numbers of all ``multipleOf`` in a schema have too many remainders, if they meet in one place."""
    together = 1
    for digits in _whole_numbers(schema):
        together = lcm(together, digits)
        if together > MOST_REMAINDERS:
            return True
    return False


def _whole_numbers(schema: Any) -> Iterator[int]:
    """Every ``multipleOf`` without its decimal point (0.25 → 25), found without recursion."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            number = part.get("multipleOf")
            if isinstance(number, int | float) and not isinstance(number, bool) and number > 0 and isfinite(number):
                _, digits, exponent = Decimal(repr(number)).as_tuple()
                assert isinstance(exponent, int), "a finite number has one"
                yield int("".join(map(str, digits))) * 10 ** max(0, exponent)
            left += part.values()
        elif isinstance(part, list):
            left += part
