"""Which idle sequences cost a call more than their return would. Pure.

Attention runs over the cells of idle sequences, too, as far as they lie below the highest used one (``engine.cells``).
Each token of a call pays for them; whoever goes on from a sequence that was dropped pays for its restore. Each is
taken to come back once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorline.cache.plan import Speeds
from anchorline.engine.cells import Runs, reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A sequence that nobody runs, and what it would take to restore it."""

    sequence: int
    cells: Runs
    restore_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What a call is about to do: import tokens, then compute some, each of which takes a cell."""

    imported_tokens: int
    computed_tokens: int


def choose_leaving(idle: Sequence[Idle], staying: Sequence[Runs], ahead: Ahead, speeds: Speeds) -> tuple[int, ...]:
    """The idle sequences to drop before a call starts; none where that saves no time.

    ``staying`` are the cells of all others. Those that lie highest are looked at first: only once they are gone does
    attention end below them.
    """
    order = sorted(idle, key=lambda each: reach([each.cells]), reverse=True)
    cells = [each.cells for each in order]
    best, best_seconds = 0, _seconds([*staying, *cells], ahead, speeds)
    for dropped in range(1, len(order) + 1):
        seconds = _seconds([*staying, *cells[dropped:]], ahead, speeds)
        seconds += sum(each.restore_seconds for each in order[:dropped])
        if seconds < best_seconds:
            best, best_seconds = dropped, seconds
    return tuple(each.sequence for each in order[:best])


def most_saved(idle: Iterable[Runs], staying: Sequence[Runs], ahead: Ahead, speeds: Speeds) -> float:
    """What the call would save if no sequence were idle, in seconds; ``idle`` are their cells."""
    return _seconds([*staying, *idle], ahead, speeds) - _seconds(staying, ahead, speeds)


def _seconds(held: Sequence[Runs], ahead: Ahead, speeds: Speeds) -> float:
    """What the call pays for the cells that its tokens see."""
    before = reach(held, ahead.imported_tokens)
    after = reach(held, ahead.imported_tokens + ahead.computed_tokens)
    return (before + after) / 2 * ahead.computed_tokens * speeds.prefill_seconds_per_token_cell
