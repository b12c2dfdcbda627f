"""Comparing token histories."""

from __future__ import annotations

from anchorline.llama.interface import TokenArray

_FIRST_PROBE_TOKENS = 64


def common_prefix(left: TokenArray, right: TokenArray) -> int:
    """Length of the longest common prefix of two id arrays; compares ids, in growing blocks.

    Most comparisons either differ at once or agree to the end, so blocks start small and double.
    """
    limit = min(left.size, right.size)
    position = 0
    block = _FIRST_PROBE_TOKENS
    while position < limit:
        end = min(position + block, limit)
        unequal = left[position:end] != right[position:end]
        first = int(unequal.argmax())
        if unequal[first]:
            return position + first
        position = end
        block *= 2
    return limit
