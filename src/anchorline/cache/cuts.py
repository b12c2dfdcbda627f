"""Where spans end: pieces to save, and the chunks of exact mode. Pure."""

from __future__ import annotations

from itertools import pairwise

from anchorline.cache.prompt import CutKind, Prompt

PIECE_TOKENS_MIN = 256
"""Message ends closer than this to the last cut don't end a piece; chains stay short."""


def piece_ends(prompt: Prompt, start: int, end: int) -> list[int]:
    """Positions in (start, end] at which the rows of [start, end) are cut into segments.

        start      head            message ends              generation      end
          |--------|-------- ≥ 256 --------|---- ≥ 256 ----|--- reply ---|

    The head and the generation cut always end a piece: the one is shared between conversations,
    behind the other lies a reply that may come back re-rendered.
    """
    if start >= end:
        return []
    ends: list[int] = []
    last = start
    for cut in prompt.cuts:
        if not start < cut.position < end:
            continue
        if cut.kind is not CutKind.MESSAGE or cut.position - last >= PIECE_TOKENS_MIN:
            ends.append(cut.position)
            last = cut.position
    return [*ends, end]


def chunk_ends(prompt: Prompt, batch_tokens: int) -> list[int]:
    """Ends of the prefill chunks in exact mode: the cuts, and every ``batch_tokens`` between them.

    A function of ids and cuts alone, so a run that resumes at one of these positions computes the
    rest in the chunks of a run from the start. The last end is the prompt's.
    """
    total = len(prompt)
    marks = sorted({0, total, *(cut.position for cut in prompt.cuts if 0 < cut.position < total)})
    ends: list[int] = []
    for low, high in pairwise(marks):
        ends.extend(range(low + batch_tokens, high, batch_tokens))
        ends.append(high)
    return ends
