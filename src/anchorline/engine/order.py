"""Which waiting stream starts next. Pure.

While several wait, starting one may take the cells of a sequence that another would go on from. So the one
with least to prefill starts first; none is passed by more than a bounded number of later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A stream that waits, in order of arrival."""

    missing_tokens: int
    """Known tokens that no live sequence holds."""
    may_be_passed: bool


def choose_next(waiting: Sequence[Waiting]) -> int:
    """The index of the stream to start: the first that may not be passed by, else the one with least to prefill."""
    for index, stream in enumerate(waiting):
        if not stream.may_be_passed:
            return index
    return min(range(len(waiting)), key=lambda index: waiting[index].missing_tokens)
