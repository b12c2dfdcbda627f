"""What goes first when room is needed: one key function of one segment. Pure."""

from __future__ import annotations

import math

from anchorline.cache.tree import Segment

HALF_LIFE_USES = 64
"""After so many uses of the tree an old use counts half."""


def keep_value(segment: Segment, *, tick: int) -> float:
    """Expected recomputed tokens saved per kept byte; the segment with the least goes first.

    Every segment of a plain model costs the same bytes per token, so this is the decayed number
    of uses, times the tokens a miss would recompute per byte. A segment never used again since it
    was saved counts one use at its birth.
    """
    age = tick - segment.last_used
    expected_uses = (1.0 + segment.uses) * math.exp2(-age / HALF_LIFE_USES)
    return expected_uses * int(segment.tokens.size) / max(segment.kept_bytes, 1)
