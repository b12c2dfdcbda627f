"""The opt-in rewrites of a request, which change what the model reads so that less of it is prefilled again.

With none of them a request is rendered as it was sent. Replies are read, and held to their schemas, by the request as
it was sent, whatever was rewritten (docs/rewrites.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from anchorline.prompt.canonical import canonical_tools
from anchorline.prompt.floating import FloatMemo, lift
from anchorline.prompt.memo import ByteMemo
from anchorline.prompt.messages import Message
from anchorline.prompt.template import Clock
from anchorline.prompt.turns import asked_before

MOMENT_BYTES = 48
"""What a date and its key hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrites:
    """Which rewrites are done, and how much they may remember of conversations."""

    float_volatile: bool = False
    canonical_tools: bool = False
    pin_date: bool = False
    memory_bytes: int = 4 << 20
    """Of each of the two that remember."""


NO_REWRITES = Rewrites()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """What was rewritten of one request."""

    floated_lines: int = 0
    floated_tokens: int = 0
    """Tokens of those lines and of the marks around them."""
    tools_sorted: bool = False
    """Whether tools or keys came in another order."""
    pinned_date: datetime | None = None
    """The time that the template shows, where it is not that of the request."""

    @property
    def names(self) -> tuple[str, ...]:
        """The rewrites that changed anything, as their flags are called."""
        done = {
            "float-volatile": bool(self.floated_lines),
            "canonical-tools": self.tools_sorted,
            "pin-date": self.pinned_date is not None,
        }
        return tuple(name for name, changed in done.items() if changed)


NOTHING_REWRITTEN = Rewriting()


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenMessages:
    """Messages to be rendered, and what is known of them as they were sent."""

    messages: list[Message]
    asked: list[bytes]
    """As ``asked_before`` of the messages, without what changes by itself."""
    floated: tuple[str, ...] = ()
    """The lines that stand behind the newest user message."""


class Rewriter:
    """Rewrites requests, and remembers what it has told each conversation. Thread-safe."""

    def __init__(self, rewrites: Rewrites, *, clock: Clock) -> None:
        self._rewrites = rewrites
        self._clock = clock
        self._floats = FloatMemo(rewrites.memory_bytes)
        self._moments: ByteMemo[tuple[str, bytes], datetime] = ByteMemo(rewrites.memory_bytes)

    def messages(self, messages: list[Message], *, tenant: str, remember: bool) -> RewrittenMessages:
        """Normalised messages with their volatile lines where they cost little.

        With ``remember`` the conversation goes on from here: what it was told now stays in its history.
        """
        if not self._rewrites.float_volatile:
            return RewrittenMessages(messages=messages, asked=asked_before(messages))
        lifted = lift(messages)
        asked = asked_before(lifted.messages)
        placed, floated = self._floats.place(lifted, asked=asked, tenant=tenant, remember=remember)
        return RewrittenMessages(messages=placed, asked=asked, floated=floated)

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Checked tools in the order in which they are rendered."""
        return canonical_tools(tools) if self._rewrites.canonical_tools else tools

    def time(self, rewritten: RewrittenMessages, *, tenant: str, remember: bool) -> tuple[datetime, bool]:
        """What the template's clock shows, and whether that was pinned by an earlier request.

        A conversation is known by what it holds before its first reply. One that has no reply yet begins now.
        """
        now = self._clock()
        if not self._rewrites.pin_date:
            return now, False
        roles = [message["role"] for message in rewritten.messages]
        begun = "assistant" in roles
        key = (tenant, rewritten.asked[roles.index("assistant") if begun else len(roles)])
        pinned = self._moments.get(key) if begun else None
        if pinned is None and remember:
            self._moments.put(key, now, MOMENT_BYTES)
        return (now, False) if pinned is None else (pinned, True)
