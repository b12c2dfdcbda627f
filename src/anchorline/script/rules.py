"""The file of ``--script``: one JSON object per line, each a rule that answers some calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from anchorline.errors import ConfigError

FILE_LIMIT_BYTES = 1 << 20


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which calls a rule answers; what is left out does not matter.

    The *news* of a call are its messages behind the last assistant message.
    """

    tools: bool | None = None
    """Whether the call offers tools."""
    results: bool | None = None
    """Whether tool results are among the news."""
    contains: str | None = None
    """A text in one of the news."""
    system: str | None = None
    """A text in one of the system messages."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tool call of a reply."""

    name: str
    arguments: dict[str, Any] = {}


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a call is answered with: ``raw`` alone, or a message that the chat template writes."""

    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall | tuple[ToolCall, ...], ...] = ()
    """A list stands for the first of its calls whose tool is offered."""
    raw: str | None = None
    """The exact text, control tokens spelled out."""

    def chosen_calls(self, offered: Mapping[str, object]) -> list[ToolCall] | None:
        """The calls to make with the tools that are ``offered`` by name; None when one of them is missing."""
        chosen = []
        for entry in self.tool_calls:
            alternatives = (entry,) if isinstance(entry, ToolCall) else entry
            usable = next((call for call in alternatives if call.name in offered), None)
            if usable is None:
                return None
            chosen.append(usable)
        return chosen


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the file."""

    reply: Reply
    match: Match = Match()
    repeat: bool = False
    """Answers any number of calls instead of one."""


def read_rules(path: str) -> tuple[Rule, ...]:
    """The rules in a file, in order; empty lines are skipped. Raises ConfigError naming the line."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--script: {path} cannot be read: {error}") from error
    if len(data) > FILE_LIMIT_BYTES:
        raise ConfigError(f"--script: {path} is larger than {FILE_LIMIT_BYTES} bytes")
    return tuple(
        _rule(line, where=f"--script: {path}, line {number}")
        for number, line in enumerate(data.splitlines(), 1)
        if line.strip()
    )


def _rule(line: bytes, *, where: str) -> Rule:
    try:
        rule = msgspec.json.decode(line, type=Rule)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    reply = rule.reply
    if reply.raw is not None and (reply.content or reply.reasoning or reply.tool_calls):
        raise ConfigError(f"{where}: reply.raw cannot be combined with other parts of a reply")
    if not (reply.raw or reply.content or reply.reasoning or reply.tool_calls):
        raise ConfigError(f"{where}: the reply is empty")
    return rule
