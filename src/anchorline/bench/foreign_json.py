"""JSON that others wrote: read so that whatever was read can also be walked, counted with, and written again."""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

import msgspec

DEEPEST = 200
"""Most levels of objects and lists in one text; recursion over it must end well before the interpreter's limit."""
KEY_SHOWN = "KEY"
"""What stands in place of an API key."""

Kind = TypeVar("Kind")


def decoded(text: str | bytes) -> Any:
    """Raises ValueError for what is no JSON, for numbers that are not finite, and for more levels than DEEPEST."""
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError(f"more than {DEEPEST} levels of objects and lists") from error
    check_levels(value)
    return value


def check_levels(value: Any) -> None:
    """Raises ValueError when ``value`` has more levels than DEEPEST."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"more than {DEEPEST} levels of objects and lists")


def told(value: Any, kind: type[Kind]) -> Kind:
    """``value`` as a ``kind``, a type with bounds on what it holds. Raises ValueError naming what breaks them."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def masked(value: Any, key: str | None) -> Any:
    """A copy of ``value``, a text or decoded JSON, with ``key`` hidden in every text of it."""
    if not key:
        return value
    if isinstance(value, str):
        return value.replace(key, KEY_SHOWN)
    if isinstance(value, list):
        return [masked(each, key) for each in value]
    if isinstance(value, dict):
        return {masked(name, key): masked(each, key) for name, each in value.items()}
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number
