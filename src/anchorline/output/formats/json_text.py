"""JSON as it arrives: checked character by character, passed on as it was written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from anchorline.output.formats.source import SPACE, Broken

DEPTH_LIMIT = 100
"""Deepest nesting of objects and lists."""
NUMBER_LIMIT = 400
"""Longest number, in characters."""

_SPACES = re.compile(r"[ \t\r\n]+")
_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD_RUN = re.compile(r"[\w+\-.]+", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITERALS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class JsonReader:
    """Reads one JSON value and passes its text on as soon as nothing can make it invalid.

    Valid JSON is passed on verbatim. Mended are what models get wrong without being misunderstood:
    control characters and bad escapes in strings, a comma before a closing bracket, Python's
    ``True``, ``False`` and ``None``. What ``write`` was given is at all times the beginning of
    valid JSON, and ``close`` completes it.
    """

    __slots__ = ("_comma", "_hex", "_key", "_open", "_out", "_state", "_word", "_write", "done", "position")

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._state: Callable[[str, int], int] = self._value
        self._open: list[str] = []
        """The brackets that will close what is open."""
        self._key = False
        """Whether the string under way is a key."""
        self._comma: list[str] = []
        """A comma and the space behind it, which wait for what follows."""
        self._word: list[str] = []
        self._hex = ""
        self._out: list[str] = []
        self.done = False
        """The value is complete."""
        self.position = 0
        """Up to where the text of the last ``feed`` was read."""

    def feed(self, text: str, start: int = 0) -> int:
        """Read ``text[start:]`` up to the end of the value, and return where that is.

        Raises Broken at the first character that cannot be mended; ``position`` is its place.
        """
        self.position = start
        try:
            while self.position < len(text) and not self.done:
                self.position = self._state(text, self.position)
        finally:
            self._flush()
        return self.position

    def finish(self) -> None:
        """The text is over. Raises Broken when the value is not."""
        if not self.done and not self._open and self._state == self._in_word:
            self._end_word()
            self._flush()
        if not self.done:
            raise Broken("unfinished JSON")

    def close(self) -> None:
        """Complete what was passed on by the shortest text that makes it one valid value."""
        word = "".join(self._word)
        if self._state == self._in_word:
            self._pass(word if _NUMBER.fullmatch(word) else "null")
        elif self._state in (self._string, self._escape, self._unicode):
            self._pass('": null' if self._key else '"')
        elif self._state == self._colon:
            self._pass(": null")
        elif self._state == self._value:
            self._pass("null")
        self._comma.clear()
        self._pass("".join(reversed(self._open)))
        self._flush()
        self.done = True

    def _flush(self) -> None:
        if self._out:
            text = "".join(self._out)
            self._out.clear()
            self._write(text)

    def _pass(self, text: str) -> None:
        if self._comma:
            self._out.extend(self._comma)
            self._comma.clear()
        self._out.append(text)

    def _space(self, text: str, at: int) -> int:
        """Where the white space at ``at`` ends, which is passed on (behind a comma: with what follows)."""
        match = _SPACES.match(text, at)
        if match is None:
            return at
        (self._comma if self._comma else self._out).append(match.group())
        return match.end()

    def _value(self, text: str, at: int) -> int:
        character = text[at]
        if character in SPACE:
            return self._space(text, at)
        if character == "{":
            return self._open_bracket("{", "}", self._key_or_end, at)
        if character == "[":
            return self._open_bracket("[", "]", self._item_or_end, at)
        if character == '"':
            return self._open_string(at, key=False)
        if _WORD_RUN.match(character):
            self._state = self._in_word
            return at
        raise Broken(f"{character!r} where a JSON value should be")

    def _item_or_end(self, text: str, at: int) -> int:
        if text[at] == "]":
            return self._close_bracket("]", at)
        return self._value(text, at)

    def _key_or_end(self, text: str, at: int) -> int:
        character = text[at]
        if character in SPACE:
            return self._space(text, at)
        if character == "}":
            return self._close_bracket("}", at)
        if character == '"':
            return self._open_string(at, key=True)
        raise Broken(f"{character!r} where a key of a JSON object should be")

    def _colon(self, text: str, at: int) -> int:
        character = text[at]
        if character in SPACE:
            return self._space(text, at)
        if character != ":":
            raise Broken(f"{character!r} where a colon of a JSON object should be")
        self._pass(":")
        self._state = self._value
        return at + 1

    def _after(self, text: str, at: int) -> int:
        """Behind a member of an object or list."""
        character = text[at]
        if character in SPACE:
            return self._space(text, at)
        if character == ",":
            self._comma.append(",")
            self._state = self._key_or_end if self._open[-1] == "}" else self._item_or_end
            return at + 1
        return self._close_bracket(character, at)

    def _string(self, text: str, at: int) -> int:
        run = _STRING_RUN.match(text, at)
        if run is not None:
            self._pass(run.group())
            return run.end()
        character = text[at]
        if character == "\\":
            self._state = self._escape
        elif character == '"':
            self._pass('"')
            if self._key:
                self._state = self._colon
            else:
                self._end_value()
        else:
            self._pass(json.dumps(character)[1:-1])
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        character = text[at]
        self._state = self._string
        if character in '"\\/bfnrt':
            self._pass("\\" + character)
        elif character == "u":
            self._state, self._hex = self._unicode, ""
        elif character != "'":
            self._pass("\\\\")
            return at
        else:
            self._pass("'")
        return at + 1

    def _unicode(self, text: str, at: int) -> int:
        character = text[at]
        if character not in "0123456789abcdefABCDEF":
            self._pass("\\\\u" + self._hex)
            self._state = self._string
            return at
        self._hex += character
        if len(self._hex) == 4:
            self._pass("\\u" + self._hex)
            self._state = self._string
        return at + 1

    def _in_word(self, text: str, at: int) -> int:
        run = _WORD_RUN.match(text, at)
        if run is None:
            self._end_word()
            return at
        if sum(map(len, self._word)) + len(run.group()) > NUMBER_LIMIT:
            raise Broken(f"a number of more than {NUMBER_LIMIT} characters")
        self._word.append(run.group())
        return run.end()

    def _end_word(self) -> None:
        word = "".join(self._word)
        known = word if _NUMBER.fullmatch(word) else _LITERALS.get(word)
        if known is None:
            raise Broken(f"{word[:40]!r} is no JSON value")
        self._word.clear()
        self._pass(known)
        self._end_value()

    def _open_string(self, at: int, *, key: bool) -> int:
        self._pass('"')
        self._key = key
        self._state = self._string
        return at + 1

    def _open_bracket(self, opening: str, closing: str, state: Callable[[str, int], int], at: int) -> int:
        if len(self._open) == DEPTH_LIMIT:
            raise Broken(f"JSON nested deeper than {DEPTH_LIMIT}")
        self._pass(opening)
        self._open.append(closing)
        self._state = state
        return at + 1

    def _close_bracket(self, character: str, at: int) -> int:
        if character != self._open[-1]:
            raise Broken(f"{character!r} where JSON should go on with a comma or {self._open[-1]!r}")
        self._comma.clear()
        self._open.pop()
        self._pass(character)
        self._end_value()
        return at + 1

    def _end_value(self) -> None:
        self._state = self._after
        self.done = not self._open


def as_json(text: str) -> str | None:
    """``text`` as the JSON of one value, mended where ``JsonReader`` mends; None when it is none."""
    parts: list[str] = []
    reader = JsonReader(parts.append)
    try:
        end = reader.feed(text)
        reader.finish()
    except Broken:
        return None
    return None if text[end:].strip(SPACE) else "".join(parts)


def quote(text: str) -> str:
    """``text`` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def quote_part(text: str) -> str:
    """Some of the inside of a JSON string that says ``text``."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def unquote(text: str) -> str:
    """What the JSON string ``text`` says; half a surrogate pair becomes U+FFFD."""
    value = json.loads(text)
    assert isinstance(value, str), "the reader saw a string"
    return _SURROGATE.sub("\ufffd", value)
