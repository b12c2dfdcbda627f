"""How many tokens each stream feeds into the next step. Pure.

A stream's *pending* tokens are known but not decoded: one for a stream that generates, the rest
of the prompt for one that prefills. Generation goes first; prefills share what is left evenly, so
that a short prompt is not held up by a long one.
"""

from __future__ import annotations

from collections.abc import Sequence

from anchorline.llama.interface import RuntimeLimits

CHUNK_SECONDS = 0.5
"""A prefill chunk is made so long that it should take about this time."""
BACKGROUND_SECONDS = 0.05
"""So long should the chunks take of what gives way to anything else."""
BACKGROUND_TOKENS_MIN = 32
"""Smaller ones would make too little of the time."""


def share_batch(pending: Sequence[int], *, batch_tokens: int, chunk_tokens: int) -> list[int]:
    """Tokens for each stream, in order; each ≤ its pending, the sum ≤ ``batch_tokens``.

    While any stream generates, prefills get at most ``chunk_tokens`` together.
    """
    shares = [1 if tokens == 1 else 0 for tokens in pending]
    generating = sum(shares)
    room = batch_tokens - generating
    if generating:
        room = min(room, chunk_tokens)
    waiting = sorted((i for i, tokens in enumerate(pending) if tokens > 1), key=lambda i: pending[i])
    for served, index in enumerate(waiting):
        even_share = room // (len(waiting) - served)
        shares[index] = min(pending[index], even_share)
        room -= shares[index]
    return shares


def bounds(
    limits: RuntimeLimits, *, generating: bool, background: bool, prefill_seconds_per_token: float
) -> tuple[int, int]:
    """Tokens that a step may hold, and of these how many of prefills while others generate."""
    ubatch, batch, seconds = limits.ubatch_tokens, limits.batch_tokens, prefill_seconds_per_token
    if background:
        batch = background_tokens(ubatch_tokens=ubatch, prefill_seconds_per_token=seconds)
    if generating:
        return batch, ubatch
    return batch, chunk_tokens(ubatch_tokens=ubatch, batch_tokens=batch, prefill_seconds_per_token=seconds)


def chunk_tokens(*, ubatch_tokens: int, batch_tokens: int, prefill_seconds_per_token: float) -> int:
    """A prefill's chunk when nothing generates: whole ubatches of about CHUNK_SECONDS, at least one."""
    ubatches = int(CHUNK_SECONDS / max(prefill_seconds_per_token * ubatch_tokens, 1e-9))
    return min(max(ubatches, 1) * ubatch_tokens, batch_tokens)


def background_tokens(*, ubatch_tokens: int, prefill_seconds_per_token: float) -> int:
    """The chunk of a call that gives way to any other: one that comes waits for no more than this."""
    quick = int(BACKGROUND_SECONDS / max(prefill_seconds_per_token, 1e-9))
    return min(max(quick, BACKGROUND_TOKENS_MIN), ubatch_tokens)
