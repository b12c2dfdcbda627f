"""What cannot be compiled is named by its path; what is too large is refused before."""

from __future__ import annotations

from typing import Any

import pytest

from anchorline.constraint import compiler as compiler_module
from anchorline.constraint import fault
from anchorline.constraint.compiler import ConstraintCompiler
from anchorline.constraint.spec import Answer, Choices, ConstraintSpec, ForcedCalls, Grammar, Regex, Tool
from anchorline.constraint.vocabulary import Vocabulary
from anchorline.errors import RequestError
from anchorline.limits import Limits
from tests.constraint.support import byte_compiler, compiled, schema, takes
from tests.server.standin import ByteTokenizer

COMPILER = byte_compiler()
DEFINED: dict[str, Any] = {
    "properties": {"a": {"$ref": "#/$defs/outer"}},
    "$defs": {
        "outer": {"properties": {"b": {"$ref": "#/$defs/in~1ner"}}},
        "unused": {"type": "wrong"},
        "in/ner": {"properties": {"two words": {"type": "wrong"}}},
    },
}

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "strang"}, ".type", "strang"),
    ({"type": "string", "pattern": "("}, ".pattern", "unclosed group"),
    ({"properties": {"x": {"pattern": "(?=a)"}}}, ".properties.x.pattern", "look-ahead"),
    ({"type": "object", "properties": []}, ".properties", "must be an object"),
    ({"properties": {"x": {"$ref": "#/$defs/none"}}}, ".properties.x.$ref", "does not exist"),
    ({"$ref": "https://example.org/schema"}, ".$ref", "not present"),
    ({"type": "integer", "minimum": 5, "maximum": 1}, ".maximum", "greater than maximum"),
    ({"minimum": 5, "maximum": 1, "type": "integer"}, ".maximum", "greater than maximum"),
    ({"minLength": 5, "maxLength": 2, "type": "string"}, ".maxLength", "greater"),
    ({"type": "string", "format": "nope"}, ".format", "Unknown format"),
    ({"prefixItems": [{}, {"not": {"type": "string"}}]}, ".prefixItems[1].not", "not"),
    ({"uniqueItems": True}, ".uniqueItems", "uniqueItems"),
    ({"contains": {"type": "string"}}, ".contains", "contains"),
    ({"type": "object", "required": "x"}, ".required", "Expected array"),
    ({"type": "array", "items": 5}, ".items", "object or boolean"),
    ({"anyOf": [{"type": "null"}, {"minimum": "a", "type": "number"}]}, ".anyOf[1].minimum", "Expected"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, ".allOf[1].type", "incompatible"),
    ({"properties": {"a": False}, "required": ["a"], "type": "object"}, ".properties.a", "unsatisfiable"),
    ({"properties": {"a b": {"multipleOf": 0}}}, '.properties["a b"].multipleOf', "multiple"),
    ({"$ref": "#/$defs/X", "$defs": {"X": {"items": {"minimum": "1"}}}}, ".$defs.X.items.minimum", "Expected"),
    (DEFINED, '.$defs["in/ner"].properties["two words"].type', "wrong"),
    ({"properties": {"x": {"pattern": "("}, "y": {"pattern": "("}}}, ".properties.x.pattern", "unclosed"),
]


def refused(answer: Answer, compiler: ConstraintCompiler = COMPILER) -> RequestError:
    with pytest.raises(RequestError) as caught:
        compiler.compile(ConstraintSpec(answer=answer))
    assert caught.value.field is not None
    assert str(caught.value).startswith(caught.value.field)
    return caught.value


@pytest.mark.parametrize(("value", "path", "says"), BAD)
def test_the_path_leads_to_what_is_wrong(value: dict[str, Any], path: str, says: str) -> None:
    error = refused(schema(value, field="response_format.json_schema.schema"))
    assert error.field == f"response_format.json_schema.schema{path}"
    assert error.code == "invalid_schema"
    assert says in str(error)
    assert "start:" not in str(error)


def test_a_wide_and_deep_schema_is_searched_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault at the end of a path of 8 levels with 16 properties each."""
    part: dict[str, Any] = {"type": "wrong"}
    for _ in range(8):
        names: dict[str, Any] = {f"p{index}": {"type": "integer"} for index in range(16)}
        part = {"type": "object", "properties": names | {"p9": part}}
    assert refused(schema(part)).field == "schema" + ".properties.p9" * 8 + ".type"
    monkeypatch.setattr(fault, "PROBES", 10)
    shorter = refused(schema(part)).field
    assert shorter is not None
    assert "schema.properties.p9" in shorter
    assert len(shorter) < 100


def test_a_false_schema_allows_nothing() -> None:
    assert refused(schema(False)).field == "schema"


def test_grammars_and_patterns() -> None:
    assert "unclosed group" in str(refused(Regex(pattern="(", field="guided_regex")))
    assert "GBNF" in str(refused(Grammar(text="root ::= missing", field="grammar")))
    assert "GBNF" in str(refused(Grammar(text="(" * 5000, field="grammar")))
    assert "unknown name" in str(refused(Grammar(text='start: "a" other', field="grammar")))


def test_the_tool_at_fault_is_named() -> None:
    good = Tool(name="a", arguments=schema({"type": "object"}, field="tools[0].function.parameters"))
    bad = Tool(
        name="b",
        arguments=schema(
            {"type": "object", "properties": {"q": {"pattern": "["}}}, field="tools[1].function.parameters"
        ),
    )
    calls = ForcedCalls(tools=(good, bad), field="tool_choice", several=True)
    with pytest.raises(RequestError) as caught:
        COMPILER.compile(ConstraintSpec(calls=calls))
    assert caught.value.field == "tools[1].function.parameters.properties.q.pattern"


def test_limits_name_their_flags() -> None:
    small = byte_compiler(Limits(grammar_bytes=400, grammar_depth=4))
    compiled(small, schema({"type": "string"}))
    assert "--max-grammar-bytes" in str(refused(Choices(texts=("x" * 400,), field="guided_choice"), small))
    compiled(small, schema({"properties": {"a": {"enum": [1]}}}))
    deep = refused(schema({"properties": {"a": {"enum": [[1]]}}}), small)
    assert "nested more than 4 deep (--max-grammar-depth)" in str(deep)


def test_nesting_without_end_is_refused_without_recursion() -> None:
    value: dict[str, Any] = {}
    for _ in range(100_000):
        value = {"items": value}
    assert "--max-grammar-depth" in str(refused(schema(value)))


def test_what_would_take_long_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MOST_SYMBOLS", 1000)
    names = {f"n{index}": {"type": "object", "properties": {"a": {"enum": [index]}}} for index in range(100)}
    large = byte_compiler()
    assert "too large" in str(refused(schema({"type": "object", "properties": names}), large))


@pytest.mark.parametrize(
    ("value", "refuses"),
    [
        ({"multipleOf": 999_983}, True),
        ({"multipleOf": 0.999983}, True),
        ({"multipleOf": 1e300}, True),
        ({"anyOf": [{"properties": {"a": {"multipleOf": 999_983}}}, {}]}, True),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, True),
        (
            {"properties": {"price": {"multipleOf": 0.01}, "angle": {"multipleOf": 1e-6}, "n": {"multipleOf": 60}}},
            False,
        ),
        ({"properties": {"multipleOf": {"const": "999983"}, "b": {"multipleOf": 4096}}}, False),
    ],
)
def test_multiples_that_would_take_long_to_compile_are_refused(value: dict[str, Any], refuses: bool) -> None:
    if refuses:
        assert "common multiple" in str(refused(schema(value)))
    else:
        compiled(COMPILER, schema(value))


@pytest.mark.parametrize(
    "answer",
    [
        schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        Grammar(text="start: @answer", field="grammar"),
    ],
)
def test_what_no_reply_can_be_is_refused(answer: Answer) -> None:
    assert "cannot be satisfied" in str(refused(answer))


def test_many_alternatives_at_one_place() -> None:
    names = {f"p{index}": {"type": "string", "format": "date-time"} for index in range(1000)}
    assert takes(compiled(COMPILER, schema({"type": "object", "properties": names})), "{}")
    choices = Choices(texts=tuple(f"c{index}" for index in range(5000)), field="guided_choice")
    assert takes(compiled(COMPILER, choices), "c4999")


def test_a_model_that_ends_nothing_cannot_be_constrained() -> None:
    endless = ConstraintCompiler(Vocabulary(ByteTokenizer(), end_of_generation=()), Limits())
    assert "end-of-generation" in str(refused(schema({}), endless))


def test_compiled_grammars_are_kept_until_others_are_used_more() -> None:
    compiler = byte_compiler(Limits(grammar_cache=2))
    first, second, third = (schema({"enum": [number]}) for number in range(3))
    made = compiled(compiler, first)
    assert compiled(compiler, first) is made
    compiled(compiler, second)
    compiled(compiler, first)
    assert compiler.compiled == 2
    compiled(compiler, third)  # pushes out the second
    compiled(compiler, first)
    assert compiler.compiled == 3
    compiled(compiler, second)
    assert compiler.compiled == 4
    assert takes(compiled(compiler, first), "0")


def test_no_grammar_is_kept_when_the_cache_is_off() -> None:
    for limits in (Limits(grammar_cache=0), Limits(grammar_cache_bytes=0)):
        compiler = byte_compiler(limits)
        compiled(compiler, schema({}))
        compiled(compiler, schema({}))
        assert compiler.compiled == 2


def test_the_same_words_asked_of_another_part_are_another_grammar() -> None:
    compiler = byte_compiler()
    strict, loose = schema({"type": "object"}), schema({"type": "object"}, strict=False)
    assert compiled(compiler, strict) is not compiled(compiler, loose)
