"""What goes first when room is needed: each policy is one key function of one segment. Pure.

The segment with the least key goes first, and nothing goes for rows whose own key is not greater: so a key also
decides what is let in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anchorline.cache.classes import CallClass
from anchorline.cache.segment import Segment

FIRST_SIGHT_TURNS = 64
"""What was seen once counts as what is used once in so many turns of conversations, until it is used again."""
NEXT_TURN = 0.5
"""How likely a conversation goes on from its newest tokens: it may go on beside them, or never."""
NEWCOMER = 0.5
"""What is not kept yet counts so much less: else what is used about as often would take turns, and none be there."""
NEEDED_MIN = 0.05
"""What a live sequence has for every call counts at least so much: its cells may be taken for others."""
LEFTOVER = 1e-9
"""What a side call's segments count in comparison with all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a segment is judged, and in what cache."""

    tick: int
    turn: int
    stateful: bool
    bytes_per_token: float
    """Of rows that are not kept yet."""


KeepValue = Callable[[Segment, Moment], float]


def least_recently_used(segment: Segment, moment: Moment) -> float:
    """The tick of its last use."""
    return float(segment.last_used)


def never(segment: Segment, moment: Moment) -> float:
    """The same for all: nothing ever goes, and what does not fit is refused."""
    return 0.0


def cost_aware(segment: Segment, moment: Moment) -> float:
    """Expected recomputed tokens saved per turn to come and per byte, beside what live sequences save."""
    saved = expected_uses(segment, tick=moment.tick, turn=moment.turn) * max(segment.needed, NEEDED_MIN)
    if segment.rows is None:
        return saved / max(moment.bytes_per_token, 1.0)
    return saved * recomputed_tokens(segment, stateful=moment.stateful) / max(segment.kept_bytes, 1)


EVICTION: Mapping[str, KeepValue] = {"cost-aware": cost_aware, "lru": least_recently_used, "none": never}
"""By the values of ``--eviction``."""


def expected_uses(segment: Segment, *, tick: int, turn: int) -> float:
    """Expected uses per turn of a conversation, whichever, to come.

    One in each of its usual gaps, and once it is overdue one in as long as it has not been used. Tokens
    seen once have no gap of their own: a conversation's next turn comes as its last ones did, anything
    else is on probation, the newer before the older. What has a rhythm and is not kept yet counts less.
    """
    if segment.call_class is CallClass.SIDE:
        return LEFTOVER / (1 + tick - segment.last_used)
    if segment.use_gap is None and segment.call_class is not CallClass.CONVERSATION:
        return 1 / (FIRST_SIGHT_TURNS + tick - segment.last_used)
    age = turn - segment.last_turn + 1
    uses = NEXT_TURN / max(_gap_before(segment), age) if segment.use_gap is None else 1 / max(segment.use_gap, age)
    return uses if segment.rows is not None else NEWCOMER * uses


def _gap_before(segment: Segment) -> float:
    """The gap of the nearest parent that has one; 1 where none has."""
    node = segment.parent
    while node is not None and node.use_gap is None:
        node = node.parent
    return 1.0 if node is None or node.use_gap is None else node.use_gap


def recomputed_tokens(segment: Segment, *, stateful: bool) -> int:
    """Tokens to prefill again when ``segment``, a leaf, is gone.

    Its own, with plain attention. With a stateful model all since the last state before its own;
    none when it has no state, since then it cannot be restored anyway.
    """
    if not stateful:
        return int(segment.tokens.size)
    if segment.state is None:
        return 0
    before = segment.parent
    while before is not None and before.state is None and before.parent is not None:
        before = before.parent
    return segment.end - (before.end if before is not None else 0)
