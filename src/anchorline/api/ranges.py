"""The allowed range of every numeric request field, declared once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from anchorline.api.decode import json_type
from anchorline.errors import RequestError

INT32_MAX = 2**31 - 1

Number = int | float

Numeric = Any
"""A numeric field as sent: ``check_range`` refuses a wrong type with the range in its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Inclusive bounds of one field; ``whole`` fields take integers (5.0 counts as one)."""

    low: Number
    high: Number
    whole: bool = False
    flag: str | None = None
    """The setting that sets the upper bound, to be named in messages."""

    def __str__(self) -> str:
        kind = "an integer" if self.whole else "a number"
        named = f" ({self.flag})" if self.flag else ""
        return f"{kind} between {self.low} and {self.high}{named}"


def _whole(low: int, high: int = INT32_MAX) -> Range:
    return Range(low=low, high=high, whole=True)


def _number(low: Number, high: Number) -> Range:
    return Range(low=low, high=high)


RANGES: dict[str, Range] = {
    "temperature": _number(0, 100),
    "top_k": _whole(-1),
    "top_p": _number(0, 1),
    "min_p": _number(0, 1),
    "typical_p": _number(0, 1),
    "top_n_sigma": _number(-1, 100),
    "repeat_penalty": _number(0.01, 100),
    "repeat_last_n": _whole(-1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "dry_multiplier": _number(0, 100),
    "dry_base": _number(1, 100),
    "dry_allowed_length": _whole(0),
    "dry_penalty_last_n": _whole(-1),
    "xtc_probability": _number(0, 1),
    "xtc_threshold": _number(0, 1),
    "mirostat": _whole(0, 2),
    "mirostat_tau": _number(0, 100),
    "mirostat_eta": _number(0, 1),
    "seed": _whole(-(2**63), 2**64 - 1),
    "max_tokens": _whole(-1, 2**63 - 1),
    "max_completion_tokens": _whole(-1, 2**63 - 1),
    "n_predict": _whole(-1, 2**63 - 1),
}


def check_range(field: str, value: object, *, allowed: Range | None = None) -> Number | None:
    """``value`` as a number in its field's range, or None when absent. Raises RequestError."""
    if value is None:
        return None
    bounds = allowed or RANGES[field]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{field} must be {bounds}, not {json_type(value)}", field=field, code="invalid_type")
    shown = str(value) if abs(value) < 1e30 else "a number that large"
    if not (math.isfinite(value) if isinstance(value, float) else True) or not bounds.low <= value <= bounds.high:
        raise RequestError(f"{field} must be {bounds}, not {shown}", field=field)
    if bounds.whole:
        if value != int(value):
            raise RequestError(f"{field} must be {bounds}, not {shown}", field=field, code="invalid_type")
        return int(value)
    return float(value)


def check_whole(field: str, value: object, *, allowed: Range | None = None) -> int | None:
    """As ``check_range``, for fields that hold integers."""
    number = check_range(field, value, allowed=allowed)
    return None if number is None else int(number)
