"""What the requests of a trace have to prefill, with a cache that keeps every prompt of a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anchorline.doctor.comparison import TOOLS, At, Held
from anchorline.doctor.layout import Layout, Position, agreement
from anchorline.doctor.lineage import LOOKBACK_REQUESTS
from anchorline.doctor.requests import AgentRequest

CountTokens = Callable[[str], int]
"""Tokens of a text; it is asked for the same texts many times."""


def restored(layouts: Sequence[Layout], place: int) -> Position:
    """How far the prompt at ``place`` agrees with any before it."""
    return agreement(layouts[max(0, place - LOOKBACK_REQUESTS) : place], layouts[place])


def tokens_behind(piece: Held, position: Position, layout: Layout, count: CountTokens) -> int:
    """Tokens of a piece of a request that lie behind ``position``."""
    start = layout.position(piece.at)
    if start >= position:
        return count(piece.text)
    if start.rank == position.rank and piece.at.part != TOOLS:
        return count(piece.text[position.offset - start.offset :])
    return 0


def pieces(request: AgentRequest) -> list[Held]:
    """All that a request says."""
    tools = [Held(At(TOOLS, index), tool.text) for index, tool in enumerate(request.tools)]
    return tools + [Held(At(number), message.text) for number, message in enumerate(request.messages)]


def prefilled_tokens(layouts: Sequence[Layout], place: int, count: CountTokens) -> int:
    """Tokens of the request at ``place`` that no prompt before it leads up to."""
    position, layout = restored(layouts, place), layouts[place]
    return sum(tokens_behind(piece, position, layout, count) for piece in pieces(layout.request))
