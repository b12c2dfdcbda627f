"""Values written as literals of a language like Python, turned into JSON as they come."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from anchorline.output.formats.json_text import as_json, quote, quote_part, unquote
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Broken, Source, Steps
from anchorline.output.formats.values import UNSAID, Kinds, kinds_of, typed_json
from anchorline.output.markers import Markers

Write = Callable[[str], None]

_KEY = re.compile(r"""[^\s,:=(){}\[\]"'<]*""")
_WORD = re.compile(r"""[^\s,(){}\[\]"'<]*""")
_BEHIND_STRING = ",:)]}"
"""What may follow a Python string in a call; a quote before anything else is part of the text."""
_HEX = "0123456789abcdefABCDEF"
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {**dict(zip("ntrbfav0\\'\"", "\n\t\r\b\f\a\v\0\\'\"", strict=True)), "\n": ""}


@dataclass(frozen=True)
class LiteralStyle:
    """How one family writes values. ``separator`` stands between the name and the value of an argument."""

    quotes: tuple[str, ...]
    separator: str
    python: bool
    """Strings have Python's escapes; a lone quote in the middle of a text does not end it."""

    @cached_property
    def string_ends(self) -> Mapping[str, Markers]:
        """By quote: what to stop at inside a string."""
        return {mark: Markers((mark, "\\") if self.python else (mark,)) for mark in self.quotes}


PYTHON = LiteralStyle(quotes=("'", '"', "'''", '"""'), separator="=", python=True)


class LiteralArguments:
    """Reads the arguments of a call: names and values up to a closing bracket."""

    def __init__(self, source: Source, sink: Sink, style: LiteralStyle) -> None:
        self._source = source
        self._sink = sink
        self._write = sink.write
        self._style = style

    def read(self, tool: str, close: str) -> Steps[None]:
        """Make a call to ``tool`` with what comes up to ``close``, behind the opening bracket. Raises Broken."""
        self._sink.known_tool(tool)
        schema = self._sink.context.tools[tool]

        def begin() -> None:
            self._sink.start_call(tool)
            self._write("{")

        yield from self._pairs(self._style.separator, close, lambda name: kinds_of(schema, name), begin)
        self._sink.finish_call()

    def _pairs(
        self, separator: str, close: str, kinds: Callable[[str], Kinds], begin: Callable[[], None]
    ) -> Steps[None]:
        """Read names and values; ``begin`` opens the object once there is a name, or nothing."""
        source = self._source
        empty = True
        while True:
            yield from source.skip_space()
            if (yield from source.accept(close)):
                break
            name = yield from self._name()
            yield from source.skip_space()
            yield from source.expect(separator)
            if empty:
                begin()
            self._write(("" if empty else ", ") + quote(name) + ": ")
            empty = False
            yield from self._value(kinds(name))
            yield from source.skip_space()
            if not (yield from source.accept(",")):
                yield from source.expect(close)
                break
        if empty:
            begin()
        self._write("}")

    def _name(self) -> Steps[str]:
        mark = yield from self._source.accept_any(self._style.quotes)
        if mark is None:
            return (yield from self._source.word(_KEY))
        parts: list[str] = []
        yield from self._string(mark, parts.append)
        return unquote(f'"{"".join(parts)}"')

    def _value(self, kinds: Kinds) -> Steps[None]:
        source = self._source
        yield from source.skip_space()
        mark = yield from source.accept_any((*self._style.quotes, "[", "(", "{"))
        if mark is None:
            word = yield from source.word(_WORD)
            if not word:
                raise Broken("a value is missing")
            self._write(typed_json(word, kinds) if kinds else as_json(word) or quote(word))
        elif mark == "{":
            yield from self._pairs(":", "}", lambda _: UNSAID, lambda: self._write("{"))
        elif mark in "[(":
            yield from self._items("]" if mark == "[" else ")")
        else:
            self._write('"')
            yield from self._string(mark, self._write)
            self._write('"')

    def _items(self, close: str) -> Steps[None]:
        source = self._source
        before = ""
        self._write("[")
        while True:
            yield from source.skip_space()
            if (yield from source.accept(close)):
                break
            self._write(before)
            before = ", "
            yield from self._value(UNSAID)
            yield from source.skip_space()
            if not (yield from source.accept(",")):
                yield from source.expect(close)
                break
        self._write("]")

    def _string(self, mark: str, write: Write) -> Steps[None]:
        """Write the inside of the JSON string that says what follows, up to its end. Raises Broken."""
        source = self._source
        ends = self._style.string_ends[mark]
        while True:
            found = yield from source.pour(ends, lambda text: write(quote_part(text)))
            if found is None:
                raise Broken("it ends inside a string")
            if found == "\\":
                yield from self._escape(write)
                continue
            if not self._style.python or len(mark) > 1:
                return
            space: list[str] = []
            yield from source.skip_space(space.append)
            following = yield from source.peek()
            if not following or following in _BEHIND_STRING:
                return
            write(quote_part("".join((mark, *space))))

    def _escape(self, write: Write) -> Steps[None]:
        source = self._source
        character = yield from source.peek()
        source.position += len(character)
        wanted = _HEX_DIGITS.get(character, 0)
        if not wanted:
            write(quote_part(_ESCAPES.get(character, "\\" + character)))
            return
        digits = ""
        while len(digits) < wanted and (digit := (yield from source.peek())) and digit in _HEX:
            digits += digit
            source.position += 1
        code = int(digits, 16) if len(digits) == wanted else 0x110000
        if code < 0x10000:
            write(f"\\u{code:04x}")
        else:
            write(quote_part(chr(code) if code < 0x110000 else f"\\{character}{digits}"))
