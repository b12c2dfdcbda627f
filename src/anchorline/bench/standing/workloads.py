"""What agents do to a server, as calls in an order: the synthetic workloads. Pure: equal seeds, equal calls.

A workload is steps. All calls of a step are one server's turn; the servers take turns step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from anchorline.bench import agent
from anchorline.bench.calls import REPLY_TOKENS
from anchorline.bench.due import Due
from anchorline.bench.standing.texts import Author

HEAD_SHARE = 0.7
"""Of an anchor: its head; the rest is history."""
MAIN_TOOLS = 12
SUB_TOOLS = 8
SUB_AGENTS = 3
LONG_STEPS = 5


class Role(StrEnum):
    """What a call is expected to cost."""

    COLD = "cold"
    """Begins with nothing that was sent before."""
    WARM = "warm"
    """Goes on from what was sent before: only its delta is new."""
    OTHER = "other"
    """Something in between: a title, a sub-agent's first call, a turn that brings much, a recorded call."""
    CONTROL = "control"
    """Looks like one that was sent before, and is not: a server that restores it answers wrongly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Due):
    """One request, and which calls of its step must have been answered before it is sent."""

    name: str
    body: dict[str, Any]
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Calls that one server answers before the next server gets them. With ``restart`` it is started anew first."""

    calls: tuple[Call, ...]
    restart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens, about. ``anchor_tokens`` are system, tools and history of the main conversation."""

    anchor_tokens: int
    delta_tokens: int = 70

    @property
    def head_tokens(self) -> int:
        return int(self.anchor_tokens * HEAD_SHARE)


Steps = tuple[Step, ...]
Builder = Callable[[Author, Sizes], Steps]


def one(name: str, body: dict[str, Any], role: Role, *, restart: bool = False) -> Step:
    """A step of a single call."""
    return Step(calls=(Call(name=name, body=body, role=role),), restart=restart)


class _Session:
    """The main conversation of an agent, which grows."""

    def __init__(self, author: Author, sizes: Sizes) -> None:
        self._author = author
        self._delta_tokens = sizes.delta_tokens
        self._rounds = 0
        self.head = author.head(sizes.head_tokens, tools=MAIN_TOOLS)
        history = author.history(sizes.anchor_tokens - sizes.head_tokens)
        self.messages = [*history, agent.user(author.text(sizes.delta_tokens))]

    def body(self, *more: agent.Message) -> dict[str, Any]:
        return self.head.body(*self.messages, *more, max_tokens=REPLY_TOKENS)

    def tool_round(self) -> dict[str, Any]:
        """The next call, with the result of a tool."""
        self.messages += self._author.tool_round(self.head, self._rounds, tokens=self._delta_tokens)
        self._rounds += 1
        return self.body()

    def question(self) -> dict[str, Any]:
        """The next call, with an answer and another question."""
        self.messages += [agent.assistant(self._text()), agent.user(self._text())]
        return self.body()

    def fork(self) -> dict[str, Any]:
        """A call that goes on from here and is thrown away: a review of what is worth remembering."""
        return self.body(agent.assistant(self._text()), agent.user(self._author.text(4 * self._delta_tokens)))

    def title(self) -> dict[str, Any]:
        """A call without tools that asks for a title."""
        messages = [agent.user(self.messages[-1].get("content") or self._text())]
        return agent.chat_body(messages, max_tokens=REPLY_TOKENS, tools=False, system=agent.TITLE_SYSTEM)

    def _text(self) -> str:
        return self._author.text(self._delta_tokens // 2)


def tool_session(author: Author, sizes: Sizes) -> Steps:
    """Three turns with tool results between them, and the first again with one tool described differently."""
    session = _Session(author, sizes)
    changed = session.head.with_other_tools(author).body(*session.messages, max_tokens=REPLY_TOKENS)
    return (
        one("question", session.body(), Role.COLD),
        one("tool result", session.tool_round(), Role.WARM),
        one("second tool result", session.tool_round(), Role.WARM),
        one("a tool changed", changed, Role.CONTROL),
    )


def fan_out(author: Author, sizes: Sizes) -> Steps:
    """The calls behind one action of a person: the chat, a title, a memory review, a second session, the chat."""
    session = _Session(author, sizes)
    steps = [
        one("main", session.body(), Role.COLD),
        one("title", session.title(), Role.OTHER),
        one("main, tool result", session.tool_round(), Role.WARM),
        one("memory", session.fork(), Role.WARM),
    ]
    second = session.head.body(agent.user(author.text(4 * sizes.delta_tokens)), max_tokens=REPLY_TOKENS)
    return (*steps, one("second session", second, Role.WARM), one("main again", session.question(), Role.WARM))


def branches(author: Author, sizes: Sizes) -> Steps:
    """Two ways to go on from one conversation, in turns."""
    session = _Session(author, sizes)
    trunk = one("trunk", session.body(), Role.COLD)
    steps = [trunk]
    lines: dict[str, list[agent.Message]] = {"a": [], "b": []}
    for turn in (1, 2):
        for name, line in lines.items():
            line += [agent.assistant(author.text(sizes.delta_tokens // 2))]
            line += [agent.user(author.text(sizes.delta_tokens // 2))]
            steps.append(one(f"branch {name}, turn {turn}", session.body(*line), Role.WARM))
    return tuple(steps)


def sub_agents(author: Author, sizes: Sizes) -> Steps:
    """A main call, sub-agents with nearly the same head side by side, twice, and the main call again."""
    session = _Session(author, sizes)
    main = one("main", session.body(), Role.COLD)
    head = author.head(sizes.head_tokens // SUB_AGENTS, tools=SUB_TOOLS)
    first: list[Call] = []
    second: list[Call] = []
    for number in range(1, SUB_AGENTS + 1):
        own = head.with_other_end(author)
        task = agent.user(author.text(2 * sizes.delta_tokens))
        result = author.tool_round(own, number, tokens=sizes.delta_tokens)
        body = own.body(task, max_tokens=REPLY_TOKENS)
        first.append(Call(name=f"sub-agent {number}", body=body, role=Role.OTHER))
        body = own.body(task, *result, max_tokens=REPLY_TOKENS)
        second.append(Call(name=f"sub-agent {number}, tool result", body=body, role=Role.WARM))
    again = one("main again", session.tool_round(), Role.WARM)
    return main, Step(calls=tuple(first)), Step(calls=tuple(second)), again


def restart(author: Author, sizes: Sizes) -> Steps:
    """Two turns, and a third on a server that was stopped and started in between."""
    session = _Session(author, sizes)
    return (
        one("question", session.body(), Role.COLD),
        one("tool result", session.tool_round(), Role.WARM),
        one("after a restart", session.tool_round(), Role.OTHER, restart=True),
    )


def long_session(author: Author, sizes: Sizes) -> Steps:
    """One conversation that grows to ``anchor_tokens``, then a short turn, a title, and a short turn again."""
    part = sizes.anchor_tokens // LONG_STEPS
    session = _Session(author, Sizes(anchor_tokens=part, delta_tokens=sizes.delta_tokens))
    steps = [one(f"{part} tokens", session.body(), Role.COLD)]
    for number in range(2, LONG_STEPS + 1):
        session.messages += [agent.assistant(author.text(sizes.delta_tokens)), *author.history(part)]
        session.messages.append(agent.user(author.text(sizes.delta_tokens)))
        steps.append(one(f"{number * part} tokens", session.body(), Role.OTHER))
    steps.append(one("tool result", session.tool_round(), Role.WARM))
    return (*steps, one("title", session.title(), Role.OTHER), one("main again", session.question(), Role.WARM))


SYNTHETIC: dict[str, Builder] = {
    "tool-session": tool_session,
    "fan-out": fan_out,
    "branches": branches,
    "sub-agents": sub_agents,
    "restart": restart,
    "long": long_session,
}
