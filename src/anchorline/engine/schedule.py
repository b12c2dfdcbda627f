"""How many tokens each stream feeds into the next step. Pure.

A stream's *pending* tokens are known but not decoded: one for a stream that generates, the rest
of the prompt for one that prefills. Generation goes first; prefills share what is left evenly, so
that a short prompt is not held up by a long one. A step takes about as long as others can wait for
it: those that generate for their next token, those that come or go for the loop to notice.
"""

from __future__ import annotations

from collections.abc import Sequence

from anchorline.llama.interface import RuntimeLimits

PREFILL_SECONDS = 0.5
"""So long should a step take while nothing generates."""
STALL_SECONDS = 0.2
"""So long should streams that generate wait for others' prompts before their next token."""
BACKGROUND_SECONDS = 0.05
"""So long should a step take of what gives way to anything else."""
PREFILL_TOKENS_MIN = 32
"""Fewer would make too little of a step."""


def share_batch(pending: Sequence[int], *, batch_tokens: int, prefill_tokens: int) -> list[int]:
    """Tokens for each stream, in order; each ≤ its pending, the sum ≤ ``batch_tokens``.

    Prefills get at most ``prefill_tokens`` together.
    """
    shares = [1 if tokens == 1 else 0 for tokens in pending]
    room = min(batch_tokens - sum(shares), prefill_tokens)
    waiting = sorted((i for i, tokens in enumerate(pending) if tokens > 1), key=lambda i: pending[i])
    for served, index in enumerate(waiting):
        even_share = room // (len(waiting) - served)
        shares[index] = min(pending[index], even_share)
        room -= shares[index]
    return shares


def prefill_tokens(limits: RuntimeLimits, *, generating: bool, background: bool, token_seconds: float) -> int:
    """Prompt tokens for one step, where each is expected to take ``token_seconds``.

    While others wait for it, at most one ubatch; else whole ubatches, at least one.
    """
    if background or generating:
        quick = int((BACKGROUND_SECONDS if background else STALL_SECONDS) / max(token_seconds, 1e-9))
        return min(max(quick, PREFILL_TOKENS_MIN), limits.ubatch_tokens)
    ubatches = int(PREFILL_SECONDS / max(token_seconds * limits.ubatch_tokens, 1e-9))
    return min(max(ubatches, 1) * limits.ubatch_tokens, limits.batch_tokens)
