"""The text of one choice as it arrives, read by generators that wait for more whenever they need it.

A reader is written as if all the text were there: ``if (yield from source.accept("<tool_call>")): …``.
Each step decides by the text alone and waits until it can, so that no result depends on how the
text was split. What was read is never read again, which keeps the work linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from typing import TypeVar

from anchorline.output.markers import Markers

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A reader: it yields where it needs more text, and returns a T."""

SPACE = " \t\r\n"
_SPACES = re.compile(r"[ \t\r\n]*")


class Broken(Exception):
    """What looked like a call is none, or is damaged; the argument says why, on one line."""


class Source:
    """Text that arrives in pieces. ``buffer[position:]`` has arrived and is not read yet."""

    __slots__ = ("_base", "_record_from", "_recorded", "buffer", "ended", "position")

    def __init__(self) -> None:
        self.buffer = ""
        self.position = 0
        self.ended = False
        """No more text will come."""
        self._base = 0
        self._recorded: list[str] = []
        self._record_from: int | None = None

    @property
    def offset(self) -> int:
        """How many characters have been read."""
        return self._base + self.position

    def add(self, text: str) -> None:
        """More text has arrived."""
        if self._record_from is not None:
            self._recorded.append(self.buffer[self._record_from : self.position])
            self._record_from = 0
        self._base += self.position
        self.buffer = self.buffer[self.position :] + text
        self.position = 0

    def record(self, *, behind: int = 0) -> None:
        """Keep what is read from now on, and the ``behind`` characters that were read last."""
        self._recorded.clear()
        self._record_from = self.position - behind

    def recorded(self) -> str:
        """What was read since ``record``, which ends the recording; "" when there is none."""
        if self._record_from is not None:
            self._recorded.append(self.buffer[self._record_from : self.position])
            self._record_from = None
        text = "".join(self._recorded)
        self._recorded.clear()
        return text

    def skip_rest(self) -> None:
        """Read all that has arrived."""
        self.position = len(self.buffer)

    def more(self) -> Steps[bool]:
        """Wait for more text; False when none will come."""
        if not self.ended:
            yield
        return not self.ended

    def peek(self) -> Steps[str]:
        """The next character, which is not read; "" at the end."""
        while self.position == len(self.buffer):
            if not (yield from self.more()):
                return ""
        return self.buffer[self.position]

    def skip_space(self, sink: Callable[[str], None] | None = None) -> Steps[None]:
        """Read white space, and give it to ``sink``."""
        while True:
            start = self.position
            self.position = _end(_SPACES, self.buffer, start)
            if sink is not None and self.position > start:
                sink(self.buffer[start : self.position])
            if self.position < len(self.buffer) or not (yield from self.more()):
                return

    def accept_any(self, texts: Collection[str]) -> Steps[str | None]:
        """Read that one of ``texts`` with which the text goes on, the longest of several; None for none."""
        longest = max(map(len, texts), default=0)
        while True:
            rest = self.buffer[self.position : self.position + longest]
            undecided = any(len(rest) < len(text) and text.startswith(rest) for text in texts)
            if undecided and (yield from self.more()):
                continue
            found = max((text for text in texts if rest.startswith(text)), key=len, default=None)
            if found is not None:
                self.position += len(found)
            return found

    def accept(self, text: str) -> Steps[bool]:
        """Read ``text`` if the text goes on with it."""
        return (yield from self.accept_any((text,))) is not None

    def expect(self, text: str) -> Steps[None]:
        """Read ``text``. Raises Broken when the text goes on with anything else."""
        if not (yield from self.accept(text)):
            found = yield from self.peek()
            raise Broken(f"{found!r} instead of {text!r}" if found else f"it ends before {text!r}")

    def word(self, pattern: re.Pattern[str], *, limit: int = 400) -> Steps[str]:
        """Read the longest run of the characters that ``pattern`` (``[…]*``) matches.

        Raises Broken when it has more than ``limit`` characters.
        """
        parts: list[str] = []
        length = 0
        while True:
            end = _end(pattern, self.buffer, self.position)
            parts.append(self.buffer[self.position : end])
            length += end - self.position
            self.position = end
            if length > limit:
                raise Broken(f"a word of more than {limit} characters")
            if end < len(self.buffer) or not (yield from self.more()):
                return "".join(parts)

    def pour(self, markers: Markers, sink: Callable[[str], None]) -> Steps[str | None]:
        """Give text to ``sink`` up to the next marker, which is read and returned; None at the end."""
        while True:
            found = markers.search(self.buffer, self.position)
            held = 0 if self.ended else markers.held(self.buffer, self.position)
            start, end = self.position, found.start() if found else len(self.buffer) - held
            self.position = end
            if end > start:
                sink(self.buffer[start:end])
            if found:
                self.position = found.end()
                return found.group()
            if self.ended:
                return None
            yield from self.more()

    def up_to(self, markers: Markers, *, limit: int) -> Steps[tuple[str, str]]:
        """The text before the next marker, and the marker; both are read.

        Raises Broken at the end of the text, and when more than ``limit`` characters come before.
        """
        parts: list[str] = []
        length = 0

        def keep(text: str) -> None:
            nonlocal length
            length += len(text)
            if length > limit:
                raise Broken(f"none of {markers.texts} within {limit} characters")
            parts.append(text)

        marker = yield from self.pour(markers, keep)
        if marker is None:
            raise Broken(f"it ends before {' or '.join(map(repr, markers.texts))}")
        return "".join(parts), marker


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return start if match is None else match.end()
