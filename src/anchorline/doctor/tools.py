"""What changed among the tools of two requests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from anchorline.doctor.comparison import TOOLS, At, Break, Held, Kind, Place, byte_length, common_items, excerpt
from anchorline.doctor.requests import Tool
from anchorline.doctor.system import VOLATILE_KINDS
from anchorline.doctor.textdiff import text_diff
from anchorline.prompt.tokenise import common_characters


def tool_breaks(old: Sequence[Tool], new: Sequence[Tool]) -> Iterator[Break]:
    """One break for tools that came or went, one for another order, one for each changed definition."""
    names, earlier = [tool.name for tool in new], [tool.name for tool in old]
    if sorted(names) != sorted(earlier):
        yield _came_or_went(old, new)
    kept = [name for name in names if name in earlier]
    if kept != [name for name in earlier if name in names]:
        yield _reordered(old, new)
    known = {tool.name: tool for tool in old}
    for index, tool in enumerate(new):
        if tool.name in known and tool != known[tool.name]:
            yield _redefined(known[tool.name], tool, index)


def tools_held(old: Sequence[Tool], new: Sequence[Tool]) -> Iterator[Held]:
    """The definitions that both requests have, wherever they stand, and what is left of those that changed."""
    left, known = Counter(old), {tool.name: tool for tool in old}
    for index, tool in enumerate(new):
        if left[tool]:
            left[tool] -= 1
            yield Held(At(TOOLS, index), tool.text)
        elif tool.name in known:
            diff = text_diff(known[tool.name].text, tool.text)
            behind = (piece for piece in diff.kept if piece.offset > diff.changes[0].offset)
            yield from (Held(At(TOOLS, index), piece.text) for piece in behind)


def _came_or_went(old: Sequence[Tool], new: Sequence[Tool]) -> Break:
    names, earlier = [tool.name for tool in new], [tool.name for tool in old]
    gone, come = Counter(earlier) - Counter(names), Counter(names) - Counter(earlier)
    before, after = ", ".join(gone.elements()), ", ".join(come.elements())
    return _break(Kind.TOOLS_CHANGED, common_items(old, new), excerpt(before), excerpt(after), field="tools")


def _reordered(old: Sequence[Tool], new: Sequence[Tool]) -> Break:
    index = common_items(old, new)
    before, after = (", ".join(tool.name for tool in tools[index:]) for tools in (old, new))
    return _break(Kind.TOOLS_REORDERED, index, excerpt(before), excerpt(after), field="tools")


def _redefined(before: Tool, after: Tool, index: int) -> Break:
    """The keys in another order, a clock or counter in a description, or another wording."""
    if json.loads(before.text) == json.loads(after.text):
        start = common_characters(before.text, after.text)
        old, new, kind = excerpt(before.text, start), excerpt(after.text, start), Kind.TOOLS_REORDERED
    else:
        change = text_diff(before.text, after.text).changes[0]
        old, new, start = excerpt(change.before), excerpt(change.after), change.offset
        kind = VOLATILE_KINDS[change.volatile] if change.volatile is not None else Kind.TOOLS_CHANGED
    return _break(kind, index, old, new, field=after.name, byte=byte_length(after.text[:start]))


def _break(kind: Kind, index: int, before: str, after: str, *, field: str, byte: int = 0) -> Break:
    place = Place(part=TOOLS, role="tools", field=field, byte=byte)
    return Break(kind=kind, at=At(TOOLS, index), place=place, before=before, after=after)
