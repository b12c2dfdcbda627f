"""Calls rendered as each format writes them come back as the same calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.output.format import CallMode
from anchorline.output.formats import FORMATS
from tests.output.reading import letters, read

Call = tuple[str, dict[str, Any]]
Render = Callable[[list[Call]], str]


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def each(
    render: Callable[[str, dict[str, Any]], str], *, before: str = "", between: str = "", after: str = ""
) -> Render:
    return lambda calls: before + between.join(render(name, arguments) for name, arguments in calls) + after


def described(key: str = "arguments") -> Callable[[str, dict[str, Any]], str]:
    return lambda name, arguments: f'{{"name": {dumps(name)}, "{key}": {dumps(arguments)}}}'


def plain(value: object) -> str:
    """A value as formats with tags write it: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else dumps(value)


def tagged(begin: str, value: str, end: str) -> Callable[[str, dict[str, Any]], str]:
    """Patterns for a call's beginning, one value and a call's end."""

    def render(name: str, arguments: dict[str, Any]) -> str:
        values = (value.format(key=key, value=plain(one)) for key, one in arguments.items())
        return begin.format(name=name) + "".join(values) + end

    return render


def python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def gemma(quote: str) -> Callable[[str, dict[str, Any]], str]:
    def literal(value: object) -> str:
        if isinstance(value, str):
            return quote + value + quote
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{literal(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(literal, value)) + "]"
        return dumps(value)

    return lambda name, arguments: f"call:{name}{literal(arguments)}"


JSON_RENDERS: dict[str, Render] = {
    "hermes": each(lambda n, a: f"<tool_call>\n{described()(n, a)}\n</tool_call>", between="\n"),
    "llama": each(described("parameters"), between="; "),
    "mistral": each(described(), before="[TOOL_CALLS][", between=", ", after="]"),
    "mistral-named": each(lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{dumps(a)}"),
    "deepseek-v3": each(
        lambda n, a: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dumps(a)}\n```<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        between="\n",
        after="<｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.1": each(
        lambda n, a: f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        after="<｜tool▁calls▁end｜>",
    ),
    "kimi": each(
        lambda n, a: f"<|tool_call_begin|>functions.{n}:3<|tool_call_argument_begin|>{dumps(a)}<|tool_call_end|>",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
    ),
    "granite": each(described(), before="<|tool_call|>[", between=", ", after="]"),
    "harmony": each(
        lambda n, a: f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{dumps(a)}<|call|>",
        between="<|start|>assistant",
    ),
    "lfm2": each(python, before="<|tool_call_start|>[", between=", ", after="]<|tool_call_end|>"),
    "gemma": each(python, before="```tool_code\n", between="\n", after="\n```"),
}

TYPED_RENDERS: dict[str, Render] = {
    "qwen-xml": each(
        tagged(
            "<tool_call>\n<function={name}>\n",
            "<parameter={key}>\n{value}\n</parameter>\n",
            "</function>\n</tool_call>",
        ),
        between="\n",
    ),
    "glm": each(
        tagged(
            "<tool_call>{name}\n",
            "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
            "</tool_call>",
        ),
        between="\n",
    ),
    "kimi-k3": each(
        tagged(
            '<|open|>call tool="{name}" index="1"<|sep|>',
            '<|open|>argument key="{key}" type="string"<|sep|>{value}<|close|>argument<|sep|>',
            "<|close|>call<|sep|>",
        ),
        before="<|open|>tools<|sep|>",
        after="<|close|>tools<|sep|>",
    ),
    "minimax": each(
        tagged('<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>\n"),
        before="<minimax:tool_call>\n",
        after="</minimax:tool_call>",
    ),
    "deepseek-v3.2": each(
        tagged(
            '<｜DSML｜invoke name="{name}">\n',
            '<｜DSML｜parameter name="{key}" string="true">{value}</｜DSML｜parameter>\n',
            "</｜DSML｜invoke>\n",
        ),
        before="<｜DSML｜function_calls>\n",
        after="</｜DSML｜function_calls>",
    ),
    "gemma4": each(lambda n, a: f"<|tool_call>{gemma('<|' + chr(34) + '|>')(n, a)}<tool_call|>"),
    "functiongemma": each(lambda n, a: f"<start_function_call>{gemma('<escape>')(n, a)}<end_function_call>"),
}

numbers = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False))
keys = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


def values(texts: st.SearchStrategy[str], names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    )


any_arguments = st.dictionaries(keys, values(st.text(max_size=20), st.text(max_size=5)), max_size=4)
any_calls = st.lists(st.tuples(st.sampled_from(["get_weather", "now"]), any_arguments), min_size=1, max_size=3)

tag_free = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<"), max_size=20)
typed_arguments = st.fixed_dictionaries(
    {},
    optional={
        "city": tag_free,
        "days": st.integers(-(10**20), 10**20),
        "exact": st.booleans(),
        "limits": st.lists(numbers, max_size=3),
        "options": st.dictionaries(keys, values(tag_free, keys), max_size=3),
        "unit": st.one_of(st.none(), tag_free.filter(lambda text: text.strip() not in ("null", "None"))),
        "unknown": tag_free,
    },
)
typed_calls = st.lists(st.tuples(st.just("get_weather"), typed_arguments), min_size=1, max_size=3)


def check(name: str, render: Render, calls: list[Call], mode: CallMode = CallMode.AUTO) -> None:
    reading = read(
        FORMATS[name], letters(f"Well:\n{render(calls)}\n" if name != "llama" else render(calls)), calls=mode
    )
    if name == "harmony":  # its text has a message of its own
        reading = read(FORMATS[name], letters(render(calls)), prompt_end="<|start|>assistant")
        assert not reading.content
    elif name != "llama":
        assert reading.content == "Well:"
    assert [(called, dumps(arguments)) for called, arguments in reading.calls] == [
        (called, dumps(arguments)) for called, arguments in calls
    ]


@pytest.mark.parametrize("name", sorted(JSON_RENDERS))
@settings(max_examples=25, deadline=None)
@given(calls=any_calls)
def test_any_json_comes_back(name: str, calls: list[Call]) -> None:
    check(name, JSON_RENDERS[name], calls)


@pytest.mark.parametrize("name", sorted(TYPED_RENDERS))
@settings(max_examples=25, deadline=None)
@given(calls=typed_calls)
def test_values_come_back_by_the_schema(name: str, calls: list[Call]) -> None:
    check(name, TYPED_RENDERS[name], calls)


@pytest.mark.parametrize("name", sorted(FORMATS))
@settings(max_examples=5, deadline=None)
@given(calls=any_calls, listed=st.booleans())
def test_a_forced_call_is_bare_json_in_every_format(name: str, calls: list[Call], listed: bool) -> None:
    calls = calls if listed else calls[:1]
    texts = ", ".join(described()(*call) for call in calls)
    reading = read(FORMATS[name], letters(f"[{texts}]" if listed else texts), calls=CallMode.JSON)
    assert reading.calls == calls
    assert not reading.content


@pytest.mark.parametrize("name", sorted(name for name, known in FORMATS.items() if known.call_tag("now")))
def test_what_a_tag_encloses_is_a_call(name: str) -> None:
    tag = FORMATS[name].call_tag("now")
    assert tag is not None
    assert tag.begin.startswith(tag.trigger)
    prompt_end = "<|start|>assistant" if name == "harmony" else ""
    reading = read(FORMATS[name], letters(tag.begin + '{"a": 1}' + tag.end), prompt_end=prompt_end)
    assert reading.parts == [("call", "now", '{"a": 1}')]


def test_every_format_is_covered() -> None:
    assert {*JSON_RENDERS, *TYPED_RENDERS} == set(FORMATS)
