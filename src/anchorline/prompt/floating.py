"""``--float-volatile``: lines of the head that change by themselves, said behind the newest user message instead.

    as sent    system: Be brief.\nIt is 14:05 now.   user: one   assistant   user: two
    rendered   system: Be brief.                     user: one   assistant   user: two + It is 14:05 now.

What was said behind a message has to stay there, or else the next turn's prompt would part from this one at that
message. So it is remembered by everything in front of it, also that it was nothing, and an older message behind which
nothing is remembered has nothing there. While tools are at work the newest user message stays the newest: what stands
behind it is what was said when the user spoke.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from anchorline.prompt.memo import ByteMemo
from anchorline.prompt.messages import Message, system_count
from anchorline.prompt.own_lines import own_lines
from anchorline.prompt.volatile_lines import is_volatile_line

OPENING, CLOSING = "<moved-from-system-prompt>\n", "</moved-from-system-prompt>"
"""What a model sees around the lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """Normalised messages without the volatile lines of their head, and those lines in order."""

    messages: list[Message]
    lines: tuple[str, ...]


def lift(messages: Sequence[Message]) -> Lifted:
    """Take the volatile lines out of the leading system messages, line ends and all; other lines stay as they are.

    They stay, too, where there is no user message to put them behind.
    """
    if all(message["role"] != "user" for message in messages):
        return Lifted(messages=list(messages), lines=())
    head = system_count(messages)
    kept: list[Message] = []
    lines: list[str] = []
    for message in messages[:head]:
        stays, goes = _parted(message["content"])
        kept.append({**message, "content": stays} if goes else message)
        lines += goes
    return Lifted(messages=[*kept, *messages[head:]], lines=tuple(lines))


def block(lines: Sequence[str]) -> str:
    """What stands behind a user message for lines that were moved there."""
    text = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
    return f"{OPENING}{text}{CLOSING}"


class FloatMemo:
    """What was said behind which user message; bounded in bytes. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._said: ByteMemo[tuple[str, bytes], tuple[str, ...]] = ByteMemo(limit_bytes)

    def place(
        self, lifted: Lifted, *, asked: Sequence[bytes], tenant: str, remember: bool
    ) -> tuple[list[Message], tuple[str, ...]]:
        """The messages, each with the lines that were said behind it, and the lines behind the newest user message.

        ``asked`` is ``asked_before`` of the lifted messages. A user who has just spoken is told anew; with ``remember``
        that stays.
        """
        messages = list(lifted.messages)
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        if not users:
            return messages, ()
        *older, newest = users
        keys = {index: (tenant, asked[index + 1]) for index in users}
        known = self._said.get(keys[newest])
        has_just_spoken = all(message["role"] not in ("assistant", "tool") for message in messages[newest:])
        if known is None or has_just_spoken:
            if remember and lifted.lines != known:
                self._said.put(keys[newest], lifted.lines, sum(map(sys.getsizeof, lifted.lines)))
            known = lifted.lines
        said = {index: self._said.get(keys[index]) or () for index in older} | {newest: known}
        for index, lines in said.items():
            messages[index] = _behind(messages[index], lines)
        return messages, known


def _parted(content: str) -> tuple[str, list[str]]:
    """What stays of a system prompt, and the lines that do not.

    Where a moved line was the last, its prompt ends as if it had never been there: line ends in front of it go, too.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", content)
    volatile = [is_volatile_line(line) for line in lines]
    if not any(volatile):
        return content, []
    goes = [own and moves for own, moves in zip(own_lines(lines), volatile, strict=True)]
    stays = "".join(line for line, moved in zip(lines, goes, strict=True) if not moved)
    if goes[-1] and not content.endswith("\n"):
        stays = stays.rstrip("\r\n")
    return stays, [line for line, moved in zip(lines, goes, strict=True) if moved]


def _behind(message: Message, lines: Sequence[str]) -> Message:
    """``message`` with ``lines``, if there are any, at the end of its content."""
    if not lines:
        return message
    content = message["content"]
    return {**message, "content": f"{content}\n\n{block(lines)}" if content else block(lines)}
