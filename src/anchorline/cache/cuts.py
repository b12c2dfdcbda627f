"""Where spans end: pieces to save, and the chunks of exact mode. Pure."""

from __future__ import annotations

from itertools import pairwise

from anchorline.cache.prompt import CutKind, Prompt

PIECE_TOKENS_MIN = 256
"""Message ends closer than this to the last cut don't end a piece; chains stay short."""


def piece_ends(prompt: Prompt, start: int, end: int, *, longest: int) -> list[int]:
    """Positions in (start, end] at which the rows of [start, end) are cut into segments.

        start      head            message ends              generation      end
          |--------|-------- ≥ 256 --------|---- ≥ 256 ----|--- reply ---|

    The head and the generation cut always end a piece: the one is shared between conversations,
    behind the other lies a reply that may come back re-rendered. No piece is longer than
    ``longest`` tokens, since an export holds up the streams that run.
    """
    if start >= end:
        return []
    marks = [start]
    for cut in prompt.cuts:
        if not start < cut.position < end:
            continue
        if cut.kind is not CutKind.MESSAGE or cut.position - marks[-1] >= PIECE_TOKENS_MIN:
            marks.append(cut.position)
    return _subdivide([*marks, end], longest)


def _subdivide(marks: list[int], longest: int) -> list[int]:
    """The marks but the first, with steps of ``longest`` put in where two lie further apart."""
    ends: list[int] = []
    for low, high in pairwise(marks):
        ends.extend(range(low + longest, high, longest))
        ends.append(high)
    return ends


def state_ends(prompt: Prompt, start: int, *, every: int) -> list[int]:
    """Positions behind ``start`` at which a prefill stops to capture the state of a stateful model.

    The head, the end of the last message, the place before the generation prompt and what is wished to be
    pinned, and every ``every`` tokens in between, so that an edit in mid-history or a cancelled prefill does not
    lose everything. Never the prompt's end: its last token is always left to decode.
    """
    wanted = {cut.position for cut in prompt.cuts if cut.kind is not CutKind.MESSAGE}
    wanted.update([cut.position for cut in prompt.cuts if cut.kind is CutKind.MESSAGE][-1:])
    wanted.update(wish.position for wish in prompt.pin_wishes)
    last = len(prompt) - 1
    marks = sorted({position for position in wanted if start < position < last} | {start, max(start, last)})
    ends = _subdivide(marks, every)
    return ends if last in wanted else ends[:-1]


def kept_chunk_ends(prompt: Prompt, batch_tokens: int) -> list[int]:
    """The chunk ends of exact mode at which other prompts may go on: the prompt's own end only where it is a cut."""
    ends = chunk_ends(prompt, batch_tokens)
    return ends if any(cut.position == ends[-1] for cut in prompt.cuts) else ends[:-1]


def chunk_ends(prompt: Prompt, batch_tokens: int) -> list[int]:
    """Ends of the prefill chunks in exact mode: the cuts, and every ``batch_tokens`` between them.

    A function of ids and cuts alone, so a run that resumes at one of these positions computes the
    rest in the chunks of a run from the start. The last end is the prompt's.
    """
    total = len(prompt)
    marks = sorted({0, total, *(cut.position for cut in prompt.cuts if 0 < cut.position < total)})
    return _subdivide(marks, batch_tokens)
