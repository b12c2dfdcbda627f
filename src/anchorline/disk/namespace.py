"""A namespace: everything that makes the bytes of one record mean the same to another process. Pure.

``llama.identity`` says what that is. Here the facts are one digest, and a text that names them for messages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Fact: TypeAlias = str | int | float | bool

FILE_NAME = "namespace.json"
MAX_FILE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which two namespaces differ; None where one of them has none of that name."""

    name: str
    ours: Fact | None
    theirs: Fact | None

    def told(self, *, ours: str, theirs: str) -> str:
        """In words, with what ``ours`` and ``theirs`` are."""
        return f"{self.name} is {_shown(self.ours)} {ours} and {_shown(self.theirs)} {theirs}"


@dataclass(frozen=True, slots=True)
class Namespace:
    """Facts by name. The digest is of all of them, in no particular order."""

    facts: Mapping[str, Fact]
    label: str = field(default="", compare=False)
    """What a person calls its model; no fact."""

    @property
    def digest(self) -> bytes:
        """sha256, 32 bytes."""
        text = json.dumps(dict(self.facts), sort_keys=True)
        return hashlib.sha256(f"anchorline namespace\0{text}".encode()).digest()

    @property
    def directory(self) -> str:
        """Name of the directory that its files lie in."""
        return self.digest.hex()

    def encode(self) -> bytes:
        """The text in ``namespace.json``."""
        return json.dumps({"label": self.label, "facts": dict(self.facts)}, sort_keys=True, indent=1).encode()

    def differences(self, other: Namespace) -> tuple[Difference, ...]:
        """Where ``other`` differs, by name."""
        names = sorted({*self.facts, *other.facts})
        pairs = ((name, self.facts.get(name), other.facts.get(name)) for name in names)
        return tuple(Difference(name, ours, theirs) for name, ours, theirs in pairs if _typed(ours) != _typed(theirs))


def read_namespace(text: bytes) -> Namespace:
    """The namespace that ``encode`` wrote; raises ValueError when it is none."""
    try:
        said = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    match said:
        case {"label": str() as label, "facts": dict() as facts}:
            if all(isinstance(value, (str, int, float, bool)) for value in facts.values()):
                return Namespace(facts, label)
    raise ValueError("not a label and facts")


def _typed(fact: Fact | None) -> str:
    """As it is in the digest, where 1, 1.0 and true are three things."""
    return json.dumps(fact)


def _shown(fact: Fact | None) -> str:
    return "not given" if fact is None else json.dumps(fact, ensure_ascii=False)
