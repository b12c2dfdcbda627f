"""Request bodies with their wording replaced.

Everything that decides how a text is treated stands before it in the body, so two bodies that begin alike, byte for
byte, come out alike exactly as far.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from anchorline.record import protocol
from anchorline.record.wording import Kept, Wording, words_of

_RUN = re.compile(r"(?P<tag>(?:(?<=<)|(?<=</))[^\W\d_]+)|(?P<word>[^\W\d_]+)|(?P<number>\d+)")
_JSON = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*"?)|(?P<exponent>(?<=\d)[^\W\d_]+)|(?P<literal>[^\W\d_]+)|(?P<number>\d+)', re.DOTALL
)
_ESCAPES = re.compile(r"\\u(?P<digits>[0-9a-fA-F]{0,4})|\\.|(?P<text>[^\\]+)", re.DOTALL)
_SYNTAX = re.compile(r"\\.|(?P<short>[^\W\d_]{1,3})(?P<rest>[^\W\d_]*)", re.DOTALL)
"""In a formal language words of three letters mean something: character ranges, escapes, groups."""

TOO_LARGE = 1e308
"""From here on, other digits may make a floating-point number that there is not."""


class Unrecordable(ValueError):
    """A body whose wording cannot be replaced; the message says why."""


class Anonymiser:
    """Replaces the wording of one recording's bodies, all by the same key. Not thread-safe."""

    def __init__(self, key: bytes) -> None:
        self._wording = Wording(key)

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """``body`` with other words; numbers in it may be ``msgspec.Raw``. Raises Unrecordable."""
        if _holds_ids(body.get("prompt")):
            raise Unrecordable("a prompt of token ids: they would tell the wording")
        self._wording.avoid(word for text in _texts(body) for word in words_of(text))
        return self._object(body)

    def text(self, text: str) -> str:
        """Replaces each word and number of a text."""

        def replace(found: re.Match[str]) -> str:
            return self._wording.word(found[0], protocol.TEXT if found["tag"] is None else protocol.TAG)

        return _RUN.sub(replace, text)

    def json_text(self, text: str) -> str:
        """Replaces what JSON holds in strings, names and numbers; it stays JSON, or as broken as it was."""

        def replace(found: re.Match[str]) -> str:
            if found["string"] is not None:
                return _ESCAPES.sub(self._in_string, found["string"])
            if found["number"] is not None:
                return self._wording.word(found["number"], protocol.TEXT)
            return self._kept(found[0], protocol.LITERAL if found["exponent"] is None else protocol.EXPONENT)

        return _JSON.sub(replace, text)

    def _in_string(self, found: re.Match[str]) -> str:
        if found["digits"] is not None:
            return r"\u" + self._wording.escape(found["digits"], protocol.TEXT, before="")
        return found[0] if found["text"] is None else self.text(found["text"])

    def _kept(self, text: str, place: Kept) -> str:
        """Keeps what follows a kept text of ``place``; what comes after, or leaves it, is replaced."""
        length = place.walk(text)
        before, rest = text[:length], text[length:]
        if not rest or before not in place.unfinished:
            return before + self.text(rest)
        return before + self._wording.letter(rest[0], place, before=before, image=before) + self.text(rest[1:])

    def _link(self, text: str) -> str:
        """Keeps the scheme; what a data URL holds is replaced as base64."""
        length = protocol.LINK.walk(text)
        if text[:length].endswith(";base64,"):
            return text[:length] + self._wording.blob(text[length:])
        return self._kept(text, protocol.LINK)

    def _syntax(self, text: str) -> str:
        def replace(found: re.Match[str]) -> str:
            if found["short"] is None:
                return found[0]
            return found["short"] + self._wording.word(found["rest"], protocol.TEXT)

        return _SYNTAX.sub(replace, text)

    def _object(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {self._kept(key, protocol.PROTOCOL): self._value(key, item) for key, item in value.items()}

    def _value(self, key: str, value: Any) -> Any:
        """What the protocol has under ``key``; under a key that it does not know, all is wording."""
        if not protocol.PROTOCOL.keeps(key):
            return self._data(value)
        if isinstance(value, str):
            return self._protocol_text(key, value)
        if isinstance(value, list):
            return [self._object(item) if isinstance(item, dict) else self._value(key, item) for item in value]
        if not isinstance(value, dict):
            return value
        if key in protocol.SCHEMA_OBJECTS:
            return self._schema(value)
        return self._data(value) if key in protocol.DATA_OBJECTS else self._object(value)

    def _protocol_text(self, key: str, text: str) -> str:
        if key in protocol.PROTOCOL_VALUES:
            return self._kept(text, protocol.PROTOCOL)
        if key in protocol.JSON_TEXTS:
            return self.json_text(text)
        if key in protocol.LINKS:
            return self._link(text)
        if key in protocol.BLOBS:
            return self._wording.blob(text)
        if key in protocol.SYNTAX_TEXTS:
            return self._syntax(text)
        return self._kept(text, protocol.HEADER) if text.startswith("x-") else self.text(text)

    def _schema(self, value: Any, keyword: str = "") -> Any:
        """A JSON schema, or what stands under its ``keyword``."""
        if isinstance(value, str):
            return self._schema_text(keyword, value)
        if isinstance(value, list):
            return [self._schema(item, keyword) for item in value]
        if not isinstance(value, dict):
            return value
        if keyword in protocol.SCHEMA_NAMES:
            name = self._syntax if keyword == "patternProperties" else self.text
            return {name(key): self._schema(item) for key, item in value.items()}
        return {
            self._kept(key, protocol.SCHEMA): self._data(item)
            if key in protocol.SCHEMA_DATA
            else self._schema(item, key)
            for key, item in value.items()
        }

    def _schema_text(self, keyword: str, text: str) -> str:
        if keyword in protocol.SCHEMA_WORDS:
            return self._kept(text, protocol.SCHEMA)
        if keyword in protocol.SCHEMA_REFERENCES:
            return self._kept(text, protocol.REFERENCE)
        return self._syntax(text) if keyword in protocol.SCHEMA_PATTERNS else self.text(text)

    def _data(self, value: Any) -> Any:
        """What a person or a model chose: all of it is wording, but true, false and null."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._data(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self._data(item) for key, item in value.items()}
        if value is None or isinstance(value, bool):
            return value
        if abs(value) >= TOO_LARGE and isinstance(value, float):
            raise Unrecordable("a number so large that others of its size are none")
        mantissa, e, exponent = msgspec.json.encode(value).decode().partition("e")
        return msgspec.Raw((self.text(mantissa) + e + exponent).encode())


def _texts(value: Any) -> Iterator[str]:
    """All texts and keys within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _holds_ids(prompt: Any) -> bool:
    if isinstance(prompt, list):
        return any(_holds_ids(item) for item in prompt)
    return isinstance(prompt, int | float)
