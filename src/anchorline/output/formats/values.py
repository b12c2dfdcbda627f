"""Arguments written as plain text: what JSON they are, by the tool's schema alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anchorline.output.formats.json_text import as_json, quote
from anchorline.output.formats.source import SPACE

Kinds = frozenset[str]
"""JSON schema types that a value may have; empty when the schema does not say."""

UNSAID: Kinds = frozenset()
WRITTEN_JSON: Kinds = frozenset({"array", "boolean", "integer", "null", "number", "object"})
"""Of a value that the model itself marks as no string."""
_DEPTH_LIMIT = 8
"""How many references and alternatives are followed."""


def kinds_of(schema: Mapping[str, Any], parameter: str) -> Kinds:
    """The types that ``schema``, which describes all parameters, allows one of them."""
    properties = schema.get("properties")
    described = properties.get(parameter) if isinstance(properties, Mapping) else None
    return _kinds(described, schema, _DEPTH_LIMIT)


def typed_json(text: str, kinds: Kinds) -> str:
    """``text`` as JSON: a string for a string's parameter, or when it is no JSON of a kind that is allowed.

    Without a word in the schema it is a string.
    """
    if not kinds or kinds == {"string"}:
        return quote(text)
    value = as_json(text.strip(SPACE))
    if value is None or ("string" in kinds and not _kinds_of_json(value) & (kinds - {"string"})):
        return quote(text)
    return value


def _kinds(described: object, root: Mapping[str, Any], depth: int) -> Kinds:
    if not isinstance(described, Mapping) or depth == 0:
        return UNSAID
    reference = described.get("$ref")
    if isinstance(reference, str):
        return _kinds(_resolve(reference, root), root, depth - 1)
    declared = described.get("type")
    if isinstance(declared, str):
        return frozenset({declared.lower()})
    if isinstance(declared, list):
        return frozenset(kind.lower() for kind in declared if isinstance(kind, str))
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(described.get(word), list):
            return UNSAID.union(*(_kinds(one, root, depth - 1) for one in described[word]))
    values = described["enum"] if isinstance(described.get("enum"), list) else [described.get("const", ...)]
    return UNSAID.union(*(_KINDS_OF_TYPES.get(type(value), UNSAID) for value in values))


def _resolve(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference within the schema (``#/$defs/…``) stands for; None when it leads nowhere."""
    found: object = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


_KINDS_OF_TYPES: dict[type, Kinds] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer"}),
    float: frozenset({"number"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}

_KINDS_BY_START: dict[str, Kinds] = {
    "{": frozenset({"object"}),
    "[": frozenset({"array"}),
    '"': frozenset({"string"}),
    "t": frozenset({"boolean"}),
    "f": frozenset({"boolean"}),
    "n": frozenset({"null"}),
}


def _kinds_of_json(text: str) -> Kinds:
    numbers = {"number"} if set(text) & set(".eE") else {"integer", "number"}
    return _KINDS_BY_START.get(text[0], frozenset(numbers))
