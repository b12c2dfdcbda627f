"""Where a prompt leaves what was seen before although that goes on, and what of it comes again behind that place. Pure.

earlier   |====== agrees ======|aaa|~~~ held by both ~~~|
prompt    |====== agrees ======|bb|~~~ held by both ~~~|ccccc|
                               ^ position               ^ new
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from anchorline.cache.segment import Segment
from anchorline.cache.tokens import common_prefix
from anchorline.llama.interface import TokenArray

BLOCK_TOKENS = 16
"""What comes again is counted in blocks of so many tokens; shorter pieces, as a template writes them, don't count."""
REACH_TOKENS = 1024
"""An earlier history is looked at for four times the rest of the prompt, and so many tokens more."""
SHOWN_TOKENS = 8
"""Ids that are kept of what the earlier history has instead, to find the first byte that differs."""
BRANCHES_LIMIT = 256
"""Of so many branches, the newest, the one that was used last is followed."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_BEGINNING = np.uint64(48)
"""What a digest is shifted by so that its first 16 bits are left."""
_NOTHING = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of two prompts, or a prompt and a reply, that both go on behind ``position``, each in its own way."""

    position: int
    """Of the first token that differs."""
    lost_tokens: int
    """Tokens of the prompt from there on that the earlier history holds, too, in whole blocks: restored but for it."""
    instead: tuple[int, ...] = ()
    """The first ids that the earlier history has there."""


def find_difference(rest: TokenArray, position: int, earlier: Sequence[TokenArray]) -> Difference | None:
    """How ``rest``, the prompt from ``position`` on, leaves histories that agree with it so far.

    ``earlier`` holds what these go on with. None where none of them goes on: the prompt then only adds to them, or
    is no longer than they are.
    """
    found: list[tuple[int, int, TokenArray]] = []
    for history in earlier:
        agreed = common_prefix(history, rest)
        if agreed < min(history.size, rest.size):
            found.append((agreed, repeated_tokens(rest[agreed:], history[agreed:]), history[agreed:]))
    if not found:
        return None
    agreed, lost, instead = max(found, key=lambda each: each[:2])
    return Difference(
        position=position + agreed, lost_tokens=lost, instead=tuple(int(token) for token in instead[:SHOWN_TOKENS])
    )


def repeated_tokens(rest: TokenArray, earlier: TokenArray) -> int:
    """How many tokens of ``rest`` lie in blocks that ``earlier`` holds somewhere.

    An estimate: blocks are compared by a digest of 64 bits.
    """
    if min(rest.size, earlier.size) < BLOCK_TOKENS:
        return 0
    asked, held = _block_digests(rest)[::BLOCK_TOKENS], _block_digests(earlier)
    # Sorting takes longest: first what begins like none that is asked for goes.
    begins = np.zeros(1 << 16, dtype=np.bool_)
    begins[asked >> _BEGINNING] = True
    held = np.sort(held[begins[held >> _BEGINNING]])
    if not held.size:
        return 0
    nearest = np.minimum(np.searchsorted(held, asked), held.size - 1)
    return BLOCK_TOKENS * int((held[nearest] == asked).sum())


def _block_digests(ids: TokenArray) -> npt.NDArray[np.uint64]:
    """A number for the block that begins at each id, [ids - BLOCK_TOKENS + 1]; the same for the same ids.

    One of 2 n ids is made of two of n ids, so that a few passes over the array make them all.
    """
    digests = ids.astype(np.uint64) + np.uint64(1)
    width, shift = 1, _MULTIPLIER
    with np.errstate(over="ignore"):
        while width < BLOCK_TOKENS:
            digests = digests[:-width] * shift + digests[width:]
            width, shift = 2 * width, shift * shift
    return digests


def reach_of(rest_tokens: int) -> int:
    """How far a history is looked at for what a rest of ``rest_tokens`` holds, too."""
    return 4 * rest_tokens + REACH_TOKENS


def goes_on_with(node: Segment, position: int, tenant: str, *, limit: int) -> TokenArray:
    """At most ``limit`` ids with which the latest history of ``tenant`` through ``node`` goes on behind ``position``.

    Only what is the tenant's own: of common heads nothing is told but whether a prompt's own is there.
    """
    parts = list(_parts_behind(node, position, tenant, limit))
    return np.concatenate(parts)[:limit] if parts else _NOTHING


def _parts_behind(node: Segment, position: int, tenant: str, limit: int) -> Iterator[TokenArray]:
    if position < node.end:
        if node.owner != tenant:
            return
        yield node.tokens[position - node.start :]
    while node.end < position + limit:
        own = [child for child in islice(_newest_children(node), BRANCHES_LIMIT) if child.owner == tenant]
        if not own:
            return
        node = max(own, key=lambda child: child.last_used)
        yield node.tokens


def _newest_children(node: Segment) -> Iterator[Segment]:
    for siblings in reversed(node.children.values()):
        yield from reversed(siblings)
