"""Lines of a prompt that stand for themselves: in no example, code or list, and no part of a sentence.

    Be brief.                      for itself
    Write a log like this:         for itself
    Date: 2026-12-01               introduced by a colon, as all up to the next empty line
    <example>                      in an element, up to the tag that closes it
    ~~~                            in a code fence, up to one of its kind
        Date: 2026-12-01           indented
    ~~~
    </example>

In doubt a line does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

_FENCE = re.compile(r"( *)(`{3,}(?=[^`]*$)|~{3,})(.*)")
_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]*)(?:\s[^<>]*)?>|(<!--)|(-->)")
_LABELLED = re.compile(r"[:=] ?\S|^(?:#|[-*•] )")
_UNFINISHED = re.compile(r"[^\W\d_]$")


def own_lines(lines: Sequence[str]) -> list[bool]:
    """Which lines stand for themselves, for the lines of one text."""
    fenced, tagged, introduced = _fenced(lines), _tagged(lines), _introduced(lines)
    goes_on = map(_goes_on, ["", *lines][: len(lines)])
    indented = [line[:1] in (" ", "\t") for line in lines]
    return [not any(each) for each in zip(fenced, tagged, introduced, goes_on, indented, strict=True)]


def _fenced(lines: Sequence[str]) -> list[bool]:
    """Lines of code fences and within: a fence ends at one of its kind that is as long, or nowhere."""
    inside: list[bool] = []
    opening: re.Match[str] | None = None
    for line in lines:
        fence = _FENCE.fullmatch(line.expandtabs(4).rstrip())
        if opening is None:
            opening = fence
            inside.append(fence is not None)
            continue
        inside.append(True)
        if fence and not fence[3] and _ends(fence, opening):
            opening = None
    return inside


def _ends(fence: re.Match[str], opening: re.Match[str]) -> bool:
    """Whether a bare fence is of the kind of ``opening``, as long, and not indented as code within it."""
    return fence[2].startswith(opening[2]) and len(fence[1]) <= len(opening[1]) + 3


def _tagged(lines: Sequence[str]) -> list[bool]:
    """Lines between a tag and the one that closes it, and theirs; a tag alone on its line may be closed nowhere."""
    opened: dict[str, list[int]] = {}
    depth = [0] * (len(lines) + 1)
    for number, line in enumerate(lines):
        for tag in _TAG.finditer(line):
            name = (tag[2] or "<!--").lower()
            if tag[1] or tag[4]:
                begun = opened.get(name)
                if begun and (first := begun.pop()) < number:
                    depth[first] += 1
                    depth[number + 1] -= 1
            elif not tag[0].endswith("/>"):
                opened.setdefault(name, []).append(number)
    for number in (number for begun in opened.values() for number in begun):
        if _TAG.fullmatch(lines[number].strip()):
            depth[number] += 1
    return [each > 0 for each in accumulate(depth[:-1])]


def _introduced(lines: Sequence[str]) -> list[bool]:
    """Lines behind one that ends with a colon, up to the first empty one behind the first of them."""
    introduced: list[bool] = []
    begins = goes = False
    for line in lines:
        text = line.rstrip().rstrip("*_`")
        if text:
            introduced.append(begins or goes)
            goes, begins = begins or goes, text.endswith((":", "\N{FULLWIDTH COLON}"))
        else:
            introduced.append(False)
            goes = False
    return introduced


def _goes_on(before: str) -> bool:
    """Whether a sentence may go on behind this line."""
    text = before.strip()
    return text.endswith((",", "(", "\\")) or bool(_UNFINISHED.search(text) and not _LABELLED.search(text))
