"""Whose turn it is where models take turns in one server. Pure.

    waiting    B  A  B  A  B      one B after another starts when B is loaded, as far as those A may be passed by
    then       A  A               a switch is due; whoever comes later, for B too, waits behind them

The next model is always that of the one who has waited longest, so nobody waits for ever; who comes later starts
earlier only when the own model is taken up anyway, and only past a bounded number of others' patience.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One who waits for a model, in order of arrival."""

    model: str
    passed: int = 0
    """How many that came later have started before."""


def starting(waiting: Sequence[Waiting], loaded: str | None, *, max_passes: int) -> list[int]:
    """The indexes of those that start now, in order; none while a switch is due.

    Nobody is passed by more than ``max_passes`` later ones in all.
    """
    if not waiting or waiting[0].model != loaded:
        return []
    starts: list[int] = []
    patience = len(waiting)
    for index, each in enumerate(waiting):
        if each.model != loaded:
            patience = min(patience, max_passes - each.passed)
        elif patience > 0:
            starts.append(index)
            patience -= 1
        else:
            break
    return starts


def passes(starts: Sequence[int], index: int) -> int:
    """How many of those that start go past the one who waits at ``index``."""
    return sum(start > index for start in starts)


def due(waiting: Sequence[Waiting], loaded: str | None) -> str | None:
    """The model to be loaded once nothing uses the loaded one; None when no switch is due."""
    return waiting[0].model if waiting and waiting[0].model != loaded else None
