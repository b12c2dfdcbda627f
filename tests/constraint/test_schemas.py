"""Whatever the schema and the choices of the sampler: the text is JSON that the schema accepts."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraint.support import byte_compiler, compiled, schema, walk

COMPILER = byte_compiler()
NAMES = st.sampled_from(["a", "b", "a b", "\u00e9", '"', "type", "properties", "$ref", ""])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3)


def ranges(low: str, high: str, most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Both bounds; random walks end only where there is an upper one."""
    pairs = st.tuples(st.integers(0, most), st.integers(0, most))
    return pairs.map(lambda pair: {low: min(pair), high: max(pair)})


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def with_required(properties: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        required = st.lists(st.sampled_from(sorted(properties)), unique=True) if properties else st.just([])
        return required.map(
            lambda names: {
                "type": "object",
                "properties": properties,
                "required": names,
                "additionalProperties": False,
            }
        )

    return st.dictionaries(NAMES, inner, max_size=3).flatmap(with_required)


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    lists = ranges("minItems", "maxItems", 3).flatmap(
        lambda bounds: inner.map(lambda items: {"type": "array", "items": items, **bounds})
    )
    unions = st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts})
    return objects(inner) | lists | unions


SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.lists(SCALARS, min_size=1, max_size=3, unique_by=repr).map(lambda values: {"enum": values})
    | SCALARS.map(lambda value: {"const": value})
    | ranges("minLength", "maxLength", 5).map(lambda bounds: {"type": "string", **bounds})
    | ranges("minimum", "maximum", 300).map(lambda bounds: {"type": "integer", **bounds})
    | st.sampled_from(
        [{"type": "boolean"}, {"type": ["null", "boolean"]}, {"type": "string", "pattern": "^[ab]{1,4}$"}]
    ),
    nested,
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(value=SCHEMAS, seed=st.integers(0, 1000))
def test_random_walks_are_accepted_by_the_schema(value: dict[str, Any], seed: int) -> None:
    constraint = compiled(COMPILER, schema(value))
    text = walk(constraint, seed)
    jsonschema.validate(json.loads(text), value)


@settings(max_examples=50, deadline=None)
@given(inner=objects(SCHEMAS), seed=st.integers(0, 1000))
def test_definitions_are_followed(inner: dict[str, Any], seed: int) -> None:
    value = {
        "type": "array",
        "items": {"$ref": "#/$defs/part"},
        "minItems": 1,
        "maxItems": 2,
        "$defs": {"part": inner},
    }
    text = walk(compiled(COMPILER, schema(value)), seed)
    jsonschema.validate(json.loads(text), value)
