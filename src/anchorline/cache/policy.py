"""What goes first when room is needed: one key function of one segment. Pure."""

from __future__ import annotations

import math

from anchorline.cache.tree import Segment

HALF_LIFE_USES = 64
"""After so many uses of the tree an old use counts half."""


def keep_value(segment: Segment, *, tick: int, stateful: bool) -> float:
    """Expected recomputed tokens saved per kept byte; the segment with the least goes first.

    The decayed number of uses, times the tokens that a miss would recompute, per byte. A segment
    never used again since it was saved counts one use at its birth.
    """
    age = tick - segment.last_used
    expected_uses = (1.0 + segment.uses) * math.exp2(-age / HALF_LIFE_USES)
    return expected_uses * recomputed_tokens(segment, stateful=stateful) / max(segment.charged_bytes, 1)


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
