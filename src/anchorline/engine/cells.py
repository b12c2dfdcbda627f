"""Which cells of the pool the sequences lie in. Pure.

llama.cpp gives a token the lowest free cell (``find_slot``), and its attention runs over all cells up to the highest
used one, whoever's they are. It tells nobody which ones those are, so they are worked out:

cells   |=== a ===|=== b ===|== c ==|            reach: the end of c
        |=== a ===|.........|== c ==|            b has gone, the reach has not
        |=== a ===|= d =|...|== c ==|            d fills the hole
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Runs = tuple[tuple[int, int], ...]
"""Cells [start, end), one run after the other."""


class CellMap:
    """The cells of each sequence, in the order of its tokens.

    Of sequences that grow at the same time each is taken to have grown on its own: only the sum is exact.
    """

    def __init__(self) -> None:
        self._runs: dict[int, Runs] = {}

    def resize(self, sequence: int, tokens: int) -> None:
        """Let a sequence hold ``tokens`` cells: it takes the lowest free ones, or gives up its last."""
        runs = self._runs.get(sequence, ())
        held = count(runs)
        if tokens < held:
            self._runs[sequence] = first(runs, tokens)
        elif tokens > held:
            self._runs[sequence] = (*runs, *lowest_free(union(self._runs.values()), tokens - held))

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let ``target`` hold the first ``tokens`` cells of ``source``, too."""
        self._runs[target] = first(self._runs.get(source, ()), tokens)

    def remove(self, sequence: int) -> None:
        self._runs.pop(sequence, None)

    def runs(self, sequence: int) -> Runs:
        return self._runs.get(sequence, ())


def count(runs: Runs) -> int:
    """How many cells there are."""
    return sum(end - start for start, end in runs)


def first(runs: Runs, cells: int) -> Runs:
    """The first ``cells`` cells."""
    found: list[tuple[int, int]] = []
    for start, end in runs:
        taken = min(end - start, cells)
        if taken > 0:
            found.append((start, start + taken))
        cells -= taken
    return tuple(found)


def union(held: Iterable[Runs]) -> Runs:
    """All cells that are held, ascending; those that are shared once."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(run for runs in held for run in runs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def lowest_free(held: Runs, cells: int) -> Runs:
    """The lowest ``cells`` cells that are not among ``held``, which ascend."""
    end_of_all = held[-1][1] if held else 0
    starts = (0, *(end for _, end in held))
    ends = (*(start for start, _ in held), end_of_all + cells)
    return first(tuple((start, end) for start, end in zip(starts, ends, strict=True) if start < end), cells)


def reach(held: Sequence[Runs], added: int = 0) -> int:
    """Up to where attention runs over the cells of ``held`` once ``added`` more are taken."""
    used = union(held)
    return max((end for _, end in (*used, *lowest_free(used, added))), default=0)
