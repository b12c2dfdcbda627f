"""The order of a request's parts in its prompt, and how far two prompts agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from anchorline.doctor.comparison import TOOLS, At, common_items
from anchorline.doctor.requests import AgentRequest, Message
from anchorline.prompt.tokenise import common_characters


class ToolOrder(StrEnum):
    """Where a chat template writes the tools."""

    FIRST = "first"
    BEHIND_SYSTEM = "behind the system prompt"
    BEFORE_LAST_QUESTION = "before the last user message"
    """Behind the history: each new question moves them."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a prompt: parts before it, and characters (or tools) of the part it is in."""

    rank: int
    offset: int = 0


START = Position(0)


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of one request in the order of its prompt."""

    request: AgentRequest
    parts: tuple[int, ...]
    keys: tuple[int, ...]
    """A number for what each part says: equal parts of all requests have the same."""
    before_tools: int
    """How many parts stand before the tools, or would."""

    def position(self, at: At) -> Position:
        return Position(self.before_tools if at.part == TOOLS else self.parts.index(at.part), at.offset)


class Layouts:
    """Makes layouts that can be compared with each other."""

    def __init__(self, order: ToolOrder) -> None:
        self._order = order
        self._numbers: dict[object, int] = {}

    def of(self, request: AgentRequest) -> Layout:
        parts, before_tools = list(range(len(request.messages))), _before_tools(request, self._order)
        if request.tools:
            parts.insert(before_tools, TOOLS)
        said = (request.tools if part == TOOLS else request.messages[part] for part in parts)
        keys = tuple(self._numbers.setdefault(each, len(self._numbers)) for each in said)
        return Layout(request, tuple(parts), keys, before_tools)


def lay_out(requests: Iterable[AgentRequest], order: ToolOrder) -> list[Layout]:
    """The layouts of requests that are to be compared with each other."""
    layouts = Layouts(order)
    return [layouts.of(request) for request in requests]


def _before_tools(request: AgentRequest, order: ToolOrder) -> int:
    if order is ToolOrder.FIRST:
        return 0
    return len(request.system) if order is ToolOrder.BEHIND_SYSTEM else last_question(request)


def last_question(request: AgentRequest) -> int:
    """Number of the last user message; where there is none, of the first behind the system prompt."""
    users = [index for index, message in enumerate(request.messages) if message.role == "user"]
    return users[-1] if users else len(request.system)


def agreement(earlier: Sequence[Layout], new: Layout) -> Position:
    """Where the prompt of ``new`` stops agreeing with that of ``earlier`` which agrees furthest."""
    ranks = [common_items(old.keys, new.keys) for old in earlier]
    furthest = [old for old, rank in zip(earlier, ranks, strict=True) if rank == max(ranks)]
    return max((Position(max(ranks), _inside(old, new, max(ranks))) for old in furthest), default=START)


def _inside(old: Layout, new: Layout, rank: int) -> int:
    """How much of the part at ``rank``, the first that differs, begins alike."""
    if rank >= min(len(old.parts), len(new.parts)):
        return 0
    left, right = old.parts[rank], new.parts[rank]
    if left == TOOLS == right:
        return common_items(old.request.tools, new.request.tools)
    if TOOLS in (left, right):
        return 0
    return _common_content(old.request.messages[left], new.request.messages[right])


def _common_content(left: Message, right: Message) -> int:
    if left.role != right.role or left.reasoning != right.reasoning:
        return 0
    return common_characters(left.content, right.content)


def tool_order(render: Callable[..., str]) -> ToolOrder:
    """The order of a template; ``render`` takes messages and ``tools`` as ``PromptBuilder.render`` does."""
    marks = {name: f"probe-{name}" for name in ("tool", "system", "first")}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": marks["system"]},
        {"role": "user", "content": marks["first"]},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": "?"},
    ]
    function = {"name": marks["tool"], "description": "", "parameters": {"type": "object", "properties": {}}}
    text = render(messages, tools=[{"type": "function", "function": function}])
    tool, system, first = (text.find(marks[name]) for name in ("tool", "system", "first"))
    if tool > first:
        return ToolOrder.BEFORE_LAST_QUESTION
    return ToolOrder.FIRST if tool < system else ToolOrder.BEHIND_SYSTEM
