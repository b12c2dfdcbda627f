"""Which earlier request each one goes on from, and which requests are of one kind.

Requests are of one *kind* when their heads, system and tools, are much alike: the main chat is one kind, its
title calls another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from anchorline.doctor.comparison import common_items
from anchorline.doctor.requests import AgentRequest, Message
from anchorline.prompt.volatile import masked

LOOKBACK_REQUESTS = 128
"""How many requests before it a request is compared with."""
ALIKE_SHARE = 0.5
"""Heads are of one kind when they share this much of the tools' names and of the system prompt's words."""


@dataclass(frozen=True, slots=True)
class Kin:
    """Where a request comes from."""

    kind: int
    """Number of its kind, in order of appearance."""
    parent: int | None
    """Place of the request that it goes on from; None for the first of its kind."""


class Lineage:
    """The kin of requests that come one after the other."""

    def __init__(self) -> None:
        self._kinds = _Kinds()
        self._numbers: dict[Message, int] = {}
        self._known: list[_Known] = []

    def add(self, request: AgentRequest) -> Kin:
        """Where the next request comes from."""
        numbers, known = self._numbers, self._known
        history = tuple(numbers.setdefault(message, len(numbers)) for message in request.history)
        mine = _Known(self._kinds.of(request), request, request.system, history)
        start = max(0, len(known) - LOOKBACK_REQUESTS)
        parents = [index for index in range(start, len(known)) if _comparable(mine, known[index])]
        kin = Kin(mine.kind, _parent(mine, parents, known))
        known.append(mine)
        return kin


def alike(left: AgentRequest, right: AgentRequest) -> bool:
    """Whether both heads are of one kind."""
    if bool(left.tools) != bool(right.tools):
        return False
    return _tools_alike(left, right) and _systems_alike(left.system, right.system)


@dataclass(frozen=True, slots=True)
class _Known:
    kind: int
    request: AgentRequest
    system: tuple[Message, ...]
    history: tuple[int, ...]
    """A number for each message; equal messages have the same."""


class _Kinds:
    """Kinds seen so far; each is known by its newest request, since heads change in small steps."""

    def __init__(self) -> None:
        self._newest: list[AgentRequest] = []

    def of(self, request: AgentRequest) -> int:
        for kind, newest in enumerate(self._newest):
            if _same_head(request, newest) or alike(request, newest):
                self._newest[kind] = request
                return kind
        self._newest.append(request)
        return len(self._newest) - 1


def _comparable(mine: _Known, other: _Known) -> bool:
    """Of one kind, or at least with one system prompt: a call may come without the tools of its conversation."""
    return mine.kind == other.kind or (bool(mine.system) and mine.system == other.system)


def _parent(mine: _Known, candidates: Sequence[int], known: Sequence[_Known]) -> int | None:
    """The one whose history agrees with this one's furthest; then the one that most of it is of, then the newest."""
    shared = {index: common_items(mine.history, known[index].history) for index in candidates}
    furthest = [index for index in candidates if shared[index] == max(shared.values())]
    return max(furthest, key=lambda index: (*_closeness(mine, known[index]), index), default=None)


def _closeness(mine: _Known, other: _Known) -> tuple[int, bool, bool]:
    both = Counter(mine.history) & Counter(other.history)
    return both.total(), mine.kind == other.kind, _same_head(mine.request, other.request)


def _same_head(left: AgentRequest, right: AgentRequest) -> bool:
    return left.tools == right.tools and left.system == right.system


def _tools_alike(left: AgentRequest, right: AgentRequest) -> bool:
    mine, other = set(left.tool_names), set(right.tool_names)
    return len(mine & other) >= ALIKE_SHARE * len(mine | other)


def _systems_alike(left: Sequence[Message], right: Sequence[Message]) -> bool:
    """Whether they share most of their words, where a clock is like any other."""
    mine, other = _words(left), _words(right)
    return (mine & other).total() >= ALIKE_SHARE * max(mine.total(), other.total())


def _words(messages: Sequence[Message]) -> Counter[str]:
    return Counter(word for message in messages for word in masked(message.content).split())
