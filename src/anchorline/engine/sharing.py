"""Whether a waiting stream should let another prefill the prefix that both share. Pure.

    source   |======= decoded =======|..............|--- its own ---|
    waiting  |=== restorable ===|...................|--- its own ---|
                                                    ^ position: from here on it forks or restores

Both would prefill up to ``position`` side by side, in one batch. When the later one waits instead,
the batch is the source's alone and the shared tokens are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anchorline.cache.plan import Speeds

SAVED_SECONDS_MIN = 0.02
"""Less prefill than this is not worth a wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilling:
    """A running stream that is still in its prompt, beside one that waits."""

    shared_tokens: int
    """Leading tokens that both prompts agree on."""
    decoded_tokens: int
    resume_points: tuple[int, ...] | None
    """Ascending positions ahead of it at which others can go on from it; None where they can anywhere."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until ``source``, an index into the streams that were given, has decoded ``position`` tokens."""

    source: int
    position: int


def choose_wait(
    prompt_tokens: int, restorable_tokens: int, prefilling: Sequence[Prefilling], speeds: Speeds
) -> Wait | None:
    """The wait that saves most, or None when starting now is as good.

    ``restorable_tokens`` is what the stream would restore now; ``prefilling`` are all the streams
    that prefill, also those that share nothing, since they take their part of each batch.
    """
    best: Wait | None = None
    best_tokens = 0
    for index, source in enumerate(prefilling):
        position = _resume_position(source, min(source.shared_tokens, prompt_tokens - 1))
        saved = position - restorable_tokens
        ahead = position - source.decoded_tokens
        if ahead <= 0 or saved * speeds.prefill_seconds_per_token < SAVED_SECONDS_MIN:
            continue
        # Tokens that the batches hold until the stream is at ``position``: on its own, and when it waits.
        gained = (len(prefilling) + 1) * saved - len(prefilling) * ahead
        if gained > best_tokens:
            best, best_tokens = Wait(index, position), gained
    return best


def _resume_position(source: Prefilling, limit: int) -> int:
    """The last position, at most ``limit``, at which another stream can go on from ``source``; 0 when nowhere."""
    if source.resume_points is None:
        return limit
    return max((point for point in source.resume_points if point <= limit), default=0)
