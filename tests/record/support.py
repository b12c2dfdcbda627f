"""What the tests of recordings compare."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

KEY = b"a key of 32 bytes for all tests."

WORD = re.compile(r"[^\W\d_]{4,}")


def encoded(value: Any) -> bytes:
    """A body as a trace holds it."""
    return msgspec.json.encode(value)


def common(left: bytes, right: bytes) -> int:
    """The length of what both begin with."""
    pairs = zip(left, right, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def texts(value: Any) -> Iterator[str]:
    """All texts and keys of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def words(value: Any) -> set[str]:
    """The words of four letters or more, in lower case; those of JSON within a text, too."""
    return {word.lower() for text in texts(value) for word in WORD.findall(re.sub(r"\\u[0-9a-fA-F]{4}|\\.", " ", text))}
