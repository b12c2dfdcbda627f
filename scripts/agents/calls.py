"""What the server says of each call, and whether the cache did all it could."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recording import Exchange

FIELDS = ("prompt", "restored", "prefilled", "generated", "seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One finished call. ``seen`` is the longest prefix of the prompt in any earlier prompt or reply."""

    main: bool
    messages: int
    tools: int
    prompt: int
    restored: int
    prefilled: int
    generated: int
    seen: int
    differs: str

    @property
    def delta(self) -> int:
        """Tokens that no earlier prompt or reply begins with; at least the last one is always computed."""
        return max(1, self.prompt - self.seen)

    @property
    def restored_all(self) -> bool:
        return self.restored >= self.prompt - self.delta


def reported(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """The server's line of each finished call by its id, from a log in JSON."""
    calls = {}
    for line in lines:
        try:
            message = json.loads(line)["message"]
        except (ValueError, KeyError):
            continue
        if message.startswith("id=") and "plan=" in message:
            pairs = dict(pair.split("=", 1) for pair in shlex.split(message))
            calls[pairs["id"]] = pairs
    return calls


def calls_of(
    exchanges: Sequence[Exchange], report: dict[str, dict[str, str]], *, uses_tools: bool, mark: str
) -> list[Call]:
    """The finished calls in the order in which they were asked; ``mark`` is in the user's own words.

    Of the main chat are those that hold it and offer tools. Of an agent without tools, those in which it stands in
    the first line of a message, as a question does and one that is quoted does not.
    """
    calls = []
    for exchange in exchanges:
        pairs = report.get(exchange.call_id or "")
        if pairs is None or not exchange.generates:
            continue
        tools = exchange.body.get("tools") or []
        messages = exchange.body.get("messages") or exchange.body.get("input") or []
        if uses_tools:
            main = bool(tools) and mark in json.dumps(messages)
        else:
            main = any(mark in str(message["content"]).partition("\n")[0] for message in messages)
        numbers = {name: int(pairs[name]) for name in FIELDS}
        differs = pairs.get("adds") or pairs["differs"]
        calls.append(Call(main=main, messages=len(messages), tools=len(tools), differs=differs, **numbers))
    return calls


def verdict(calls: Sequence[Call]) -> str:
    """In one line: whether every main call after the first was restored as far as it had been seen."""
    later = [call for call in calls if call.main][1:]
    if not later:
        return "no second main call: nothing is shown"
    short = [call for call in later if not call.restored_all]
    if short:
        worst = max(short, key=lambda call: call.prompt - call.delta - call.restored)
        return f"{len(short)} of {len(later)} later main calls restored less than was seen, at worst {worst}"
    return f"all {len(later)} later main calls restored everything that was seen"


def refusals(exchanges: Sequence[Exchange]) -> list[str]:
    """What the server refused, apart from probes for other servers."""
    return [
        f"{exchange.method} {exchange.path} {exchange.status}: {bytes(exchange.answer[:300])!r}"
        for exchange in exchanges
        if exchange.status >= 400 and (exchange.generates or exchange.status >= 500)
    ]


def probes(exchanges: Sequence[Exchange]) -> list[str]:
    """Everything else that was asked for, with its status, each once."""
    asked = {f"{e.method} {re.sub('//+', '/', e.path)} {e.status}": None for e in exchanges if not e.generates}
    return list(asked)


def as_rows(calls: Sequence[Call]) -> list[list[str]]:
    """One row for each call, with how much of the reply before it came back as it was generated.

    That reply is the one of the call that this one goes on from: of its kind the longest whose prompt was seen whole.
    """
    rows = []
    for index, call in enumerate(calls):
        repeated = [earlier for earlier in calls[:index] if earlier.main == call.main and earlier.prompt <= call.seen]
        returned = "-"
        if repeated:
            before = max(repeated, key=lambda earlier: earlier.prompt)
            returned = f"{min(call.seen - before.prompt, before.generated)}/{before.generated}"
        numbers = (call.messages, call.tools, call.prompt, call.seen, call.restored, call.prefilled)
        rows.append(["main" if call.main else "side", *map(str, numbers), returned, call.differs])
    return rows
