"""Plain text becomes the JSON that the schema asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anchorline.output.formats.values import kinds_of, typed_json

SCHEMA: dict[str, Any] = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "items": {"type": "array"},
        "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "colour": {"$ref": "#/$defs/Colour"},
        "level": {"enum": [1, 2, 3]},
        "loop": {"$ref": "#/properties/loop"},
        "lost": {"$ref": "#/nowhere/at/all"},
        "upper": {"type": "INTEGER"},
        "odd": 5,
    },
    "$defs": {"Colour": {"type": "string", "enum": ["red", "1"]}},
}


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        ("text", "12", "12"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", " as it is\n", " as it is\n"),
        ("count", " 12\n", 12),
        ("count", "twelve", "twelve"),
        ("count", "12 or 13", "12 or 13"),
        ("ratio", "1.5e3", 1500.0),
        ("flag", "true", True),
        ("flag", "False", False),
        ("items", '[1, "a"]', [1, "a"]),
        ("maybe", "null", None),
        ("maybe", "12", "12"),
        ("either", "12", 12),
        ("either", "1.5", "1.5"),
        ("either", '"12"', '"12"'),
        ("colour", "1", "1"),
        ("level", "2", 2),
        ("loop", "1", "1"),
        ("lost", "1", "1"),
        ("upper", "1", 1),
        ("odd", "1", "1"),
        ("unknown", "1", "1"),
    ],
)
def test_by_the_schema_alone(parameter: str, text: str, value: object) -> None:
    assert json.loads(typed_json(text, kinds_of(SCHEMA, parameter))) == value


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": []}, {"type": "object"}])
def test_without_a_word_in_the_schema_it_is_a_string(schema: dict[str, Any]) -> None:
    assert typed_json("5", kinds_of(schema, "x")) == '"5"'
