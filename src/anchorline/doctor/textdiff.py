"""Where two texts differ, line by line and word by word, and which pieces both hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from anchorline.doctor.comparison import common_items
from anchorline.prompt.volatile import Volatile, masked, volatility

DIFF_LINES = 1000
"""Lines, and words of a line, that are compared one by one; more of them count as rewritten as a whole."""

_TOKENS = re.compile(r"[^\W\d_]+|\d+|\s+|[\W_]")
_WORD = re.compile(r"[\w:./+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChange:
    """One changed place of a text. Numbers are of the later text."""

    line: int
    """From 1."""
    line_text: str
    """The line that it begins in, as it is now."""
    offset: int
    """Characters before the change."""
    before: str
    after: str
    volatile: Volatile | None
    """What changed by itself; None for wording."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A piece of the later text that the earlier one holds; ``offset`` in the later text."""

    offset: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDiff:
    changes: tuple[TextChange, ...]
    kept: tuple[Kept, ...]


def text_diff(before: str, after: str) -> TextDiff:
    """Both texts beside each other; lines that came, went or turned into more or fewer are one change."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    starts = _starts(new)
    changes: list[TextChange] = []
    kept: list[Kept] = []
    for old_start, old_end, new_start, new_end, _ in _runs(list(map(masked, old)), list(map(masked, new))):
        gone, come = old[old_start:old_end], new[new_start:new_end]
        if len(gone) != len(come):
            changes.append(_cut(gone, come, line=new_start, start=starts[new_start]))
            continue
        for line, (left, right) in enumerate(zip(gone, come, strict=True), new_start):
            if left == right:
                kept.append(Kept(starts[line], right))
            else:
                change, pieces = _line_diff(left, right, line=line, start=starts[line])
                changes.append(change)
                kept += pieces
    return TextDiff(changes=tuple(changes), kept=tuple(kept))


def _cut(gone: Sequence[str], come: Sequence[str], *, line: int, start: int) -> TextChange:
    """Lines in the place of others."""
    return TextChange(
        line=line + 1,
        line_text=come[0] if come else "",
        offset=start,
        before="".join(gone),
        after="".join(come),
        volatile=None,
    )


def _starts(lines: Sequence[str]) -> list[int]:
    """Characters before each line, and before the end."""
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return starts


def _runs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int, bool]]:
    """(old start, old end, new start, new end, whether they are the same), in order, over all of both."""
    head = common_items(old, new)
    tail = common_items(old[head:][::-1], new[head:][::-1])
    old_end, new_end = len(old) - tail, len(new) - tail
    if head:
        yield 0, head, 0, head, True
    if max(old_end, new_end) - head > DIFF_LINES:
        yield head, old_end, head, new_end, False
    else:
        matcher = SequenceMatcher(None, old[head:old_end], new[head:new_end], autojunk=False)
        for kind, a, b, c, d in matcher.get_opcodes():
            yield head + a, head + b, head + c, head + d, kind == "equal"
    if tail:
        yield old_end, len(old), new_end, len(new), True


def _line_diff(before: str, after: str, *, line: int, start: int) -> tuple[TextChange, list[Kept]]:
    """The changed part of a line, from its first changed word to its last, and what is around it."""
    spans = [
        (*_widened(before, old_start, old_end), *_widened(after, new_start, new_end))
        for old_start, old_end, new_start, new_end in _changed_spans(before, after)
    ]
    words = [(before[span[0] : span[1]], after[span[2] : span[3]]) for span in spans]
    old_start, new_start = min(span[0] for span in spans), min(span[2] for span in spans)
    old_end, new_end = max(span[1] for span in spans), max(span[3] for span in spans)
    change = TextChange(
        line=line + 1,
        line_text=after,
        offset=start + new_start,
        before=before[old_start:old_end],
        after=after[new_start:new_end],
        volatile=volatility(words),
    )
    pieces = [Kept(start, after[:new_start]), Kept(start + new_end, after[new_end:])]
    return change, [piece for piece in pieces if piece.text]


def _changed_spans(before: str, after: str) -> Iterator[tuple[int, int, int, int]]:
    """(old start, old end, new start, new end) in characters of each run of changed words; at least one."""
    old, new = _TOKENS.findall(before), _TOKENS.findall(after)
    old_starts, new_starts = _starts(old), _starts(new)
    for a, b, c, d, same in _runs(old, new):
        if not same:
            yield old_starts[a], old_starts[b], new_starts[c], new_starts[d]


def _widened(text: str, start: int, end: int) -> tuple[int, int]:
    """The span grown to whole words."""
    while start and _WORD.fullmatch(text[start - 1]):
        start -= 1
    while end < len(text) and _WORD.fullmatch(text[end]):
        end += 1
    return start, end
