"""What may be asked of a reply, as values; every part knows where in the request it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anchorline.output.format import ReasoningTags


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema:
    """JSON text that a schema accepts."""

    schema: Mapping[str, Any] | bool
    field: str
    """JSON path of the schema in the request (``response_format.json_schema.schema``)."""
    strict: bool
    """Refuse keywords that cannot be enforced; they are ignored otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex:
    """Text that a regular expression matches as a whole (Rust's syntax: no look-around, no back-references)."""

    pattern: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """One of several texts."""

    texts: tuple[str, ...]
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """Text that a grammar derives: llama.cpp's GBNF, or Lark as llguidance has it."""

    text: str
    field: str


Answer = JsonSchema | Regex | Choices | Grammar
"""What the text of an answer must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that may be called."""

    name: str
    arguments: JsonSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedCalls:
    """The reply is a call as bare JSON, ``{"name": …, "arguments": {…}}``, or with ``several`` a list of them."""

    tools: tuple[Tool, ...]
    field: str
    """What forces the call (``tool_choice``)."""
    several: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedCalls:
    """The model may call in its own format, whose arguments then follow the schemas."""

    tools: tuple[Tool, ...]
    field: str
    several: bool
    """Whether one reply may hold more than one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintSpec:
    """Everything asked of one reply.

    Without ``answer`` the text is free; with ForcedCalls there is no text besides them.
    """

    answer: Answer | None = None
    calls: ForcedCalls | OfferedCalls | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The block of free text that may come first; the constraint holds behind it."""

    tags: ReasoningTags
    opened: bool
    """The prompt ends inside the block; otherwise the model may open one."""
