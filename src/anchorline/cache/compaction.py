"""Which neighbouring segments of a chain are exported again as one, so that a restore is few imports. Pure.

    root ── head ──|── a ── b ── c ──┬── d ── e ── f        pinned ends and forks part stretches
                                     └── another history

A run is what one import puts back: neighbouring nodes that view the same rows. Each turn adds one
or a few, and once there are too many the newest are merged: as many as it takes for the oldest of
them to be no larger than the others together. So runs get larger towards the root, and a token is
copied about as often as its conversation doubles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import zip_longest

from anchorline.cache.rows import Rows
from anchorline.cache.segment import Segment

CHAIN_SEGMENTS_MAX = 7
"""A save leaves no longer chain. Eight is the promise: a history that forks off a merged run counts one more."""
CHAIN_SEGMENTS_IDLE = 6
"""What the engine merges down to when it has nothing else to do."""

FORK_WEIGHT = 4
"""To merge over a fork is as bad as to copy so many times the tokens."""


class Joint(IntEnum):
    """What would be lost if two neighbours were one."""

    FREE = 0
    FORK = 1
    """Another history goes on from here, and would read all of the merged rows."""
    ANCHOR = 2
    """A pinned segment, or the head, ends here: conversations to come start from it."""
    OWNER = 3
    """What is common to all tenants ends here. Never crossed: each reads no rows but those and its own."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring segments of a chain that are restored by one import."""

    segments: tuple[Segment, ...]
    rows: Rows
    joint: Joint
    """With the run behind it."""

    @property
    def tokens(self) -> int:
        return self.segments[-1].end - self.segments[0].start

    @property
    def is_shared(self) -> bool:
        """Whether other histories view the same rows, which then stay beside a merged copy."""
        return self.rows.viewed_tokens > self.tokens


def runs_of(chain: Sequence[Segment], head: int | None) -> list[Run]:
    """The runs of a chain of kept segments; ``head`` is where system + tools end."""
    grouped: list[list[Segment]] = []
    for segment in chain:
        if grouped and grouped[-1][-1].rows is segment.rows:
            grouped[-1].append(segment)
        else:
            grouped.append([segment])
    return [
        Run(tuple(segments), _rows(segments[0]), _joint(segments[-1], behind, head))
        for segments, behind in zip_longest(grouped, grouped[1:])
    ]


def _rows(segment: Segment) -> Rows:
    assert segment.rows is not None
    return segment.rows


def _joint(segment: Segment, behind: Sequence[Segment] | None, head: int | None) -> Joint:
    """``behind`` are the segments of the next run."""
    if behind is not None and behind[0].owner != segment.owner:
        return Joint.OWNER
    if segment.pins or segment.end == head:
        return Joint.ANCHOR
    branches = sum(child.rows is not None for child in segment.offspring())
    return Joint.FORK if branches > 1 else Joint.FREE


def choose_merge(runs: Sequence[Run], limit: int, *, largest_tokens: int) -> Sequence[Run]:
    """Neighbours to merge next, ``largest_tokens`` at most; empty when ``limit`` is kept, or nothing fits.

    Those whose copy costs least for each run that goes. Anchors are crossed only when nothing else is left.
    """
    if len(runs) <= limit:
        return ()
    for allowed in (Joint.FORK, Joint.ANCHOR):
        levels = [level for level in Joint if level <= allowed]
        candidates = [priced for level in levels for priced in _candidates(runs, level, largest_tokens)]
        if candidates:
            return min(candidates, key=lambda priced: priced[0])[1]
    return ()


def _candidates(runs: Sequence[Run], allowed: Joint, largest_tokens: int) -> Iterator[tuple[float, Sequence[Run]]]:
    """(Cost, runs) of the merge that each stretch offers."""
    weight = 1 if allowed is Joint.FREE else FORK_WEIGHT
    for stretch in _stretches(runs, allowed):
        chosen = _candidate(runs, stretch, allowed, largest_tokens)
        if len(chosen) > 1:
            yield weight * _tokens(chosen) / (len(chosen) - 1), chosen


def _stretches(runs: Sequence[Run], allowed: Joint) -> Iterator[range]:
    """Index ranges of runs between which no joint is dearer than ``allowed``."""
    start = 0
    for index, run in enumerate(runs):
        if run.joint > allowed or index == len(runs) - 1:
            yield range(start, index + 1)
            start = index + 1


def _candidate(runs: Sequence[Run], stretch: range, allowed: Joint, largest_tokens: int) -> Sequence[Run]:
    """The end of a stretch that is worth merging; all of it unless the stretch is still growing."""
    chosen = list(runs[stretch.start : stretch.stop])
    while len(chosen) > 2 and stretch.stop == len(runs) and chosen[0].tokens > _tokens(chosen[1:]):
        del chosen[0]
    # Torn from the rest of its rows, a shared run costs other histories an import more. Behind another
    # run it does not: the merged rows take the place of that one.
    while chosen and (_tokens(chosen) > largest_tokens or (chosen[0].is_shared and allowed is Joint.FREE)):
        del chosen[0]
    return chosen


def _tokens(runs: Sequence[Run]) -> int:
    return sum(run.tokens for run in runs)
