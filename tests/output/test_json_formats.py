"""Replies as the formats with JSON arguments define them."""

from __future__ import annotations

import pytest

from anchorline.output.format import CallMode
from anchorline.output.formats import FORMATS
from tests.output.reading import Part, letters, read

V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V3_1 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
PARIS = '{"city": "Paris"}'

GOLDEN: list[tuple[str, str, str, list[Part]]] = [
    (
        "hermes",
        "",
        "<think>\nThe user asks\nfor the weather.\n</think>\n\nLet me look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        [
            ("reasoning", "The user asks\nfor the weather."),
            ("text", "Let me look."),
            ("call", "get_weather", PARIS),
            ("call", "now", "{}"),
        ],
    ),
    ("hermes", "<think>\n", "short\n</think>\n\nYes.", [("reasoning", "short"), ("text", "Yes.")]),
    ("hermes", "<think>\n", "never\nclosed", [("reasoning", "never\nclosed")]),
    ("hermes", "<think>\n\n</think>\n\n", "Yes.", [("text", "Yes.")]),
    ("hermes", "<think>\n", "<think>\nagain\n</think>Yes.", [("reasoning", "again"), ("text", "Yes.")]),
    ("hermes", "", "</think>\n\nYes.", [("text", "Yes.")]),
    ("hermes", "", "The tag <think> opens it.", [("text", "The tag <think> opens it.")]),
    (
        "hermes",
        "",
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<think>\nwell\n</think>\nDone.',
        [("call", "now", "{}"), ("reasoning", "well"), ("text", "Done.")],
    ),
    (
        "llama",
        "",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}',
        [("call", "get_weather", PARIS), ("call", "now", "{}")],
    ),
    (
        "llama",
        "",
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        [("call", "get_weather", PARIS)],
    ),
    ("llama", "", '<|python_tag|>get_weather.call(city="Paris")', [("call", "get_weather", PARIS)]),
    ("llama", "", "<|python_tag|>import os\nos.name", [("call", "python", '{"code": "import os\\nos.name"}')]),
    ("llama", "", '<function=get_weather>{"city": "Paris"}</function>', [("call", "get_weather", PARIS)]),
    ("llama", "", '{"answer": 4, "why": "two and two"}', [("text", '{"answer": 4, "why": "two and two"}')]),
    (
        "mistral",
        "",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "a1b2c3d4e"}, '
        '{"name": "now", "arguments": {}, "id": "123456789"}]',
        [("call", "get_weather", PARIS), ("call", "now", "{}")],
    ),
    (
        "mistral-named",
        "",
        '[THINK]Hm.[/THINK]I look.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}',
        [("reasoning", "Hm."), ("text", "I look."), ("call", "get_weather", PARIS), ("call", "now", "{}")],
    ),
    (
        "mistral-named",
        "",
        '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}[TOOL_CALLS]now{}',
        [("call", "get_weather", PARIS), ("call", "now", "{}")],
    ),
    (
        "deepseek-v3",
        "<think>\n",
        f"Hm.\n</think>\n\n<｜tool▁calls▁begin｜>{V3.format('get_weather', PARIS)}\n{V3.format('now', '{}')}"
        "<｜tool▁calls▁end｜>",
        [("reasoning", "Hm."), ("call", "get_weather", PARIS), ("call", "now", "{}")],
    ),
    (
        "deepseek-v3.1",
        "</think>",
        f"Let me see.<｜tool▁calls▁begin｜>{V3_1.format('get_weather', PARIS)}{V3_1.format('now', '{}')}"
        "<｜tool▁calls▁end｜>",
        [("text", "Let me see."), ("call", "get_weather", PARIS), ("call", "now", "{}")],
    ),
    (
        "kimi",
        "",
        "<think>Hm.</think>Let me see.<|tool_calls_section_begin|>"
        + KIMI.format("get_weather", 0, PARIS)
        + KIMI.format("now", 1, "{}")
        + "<|tool_calls_section_end|>",
        [("reasoning", "Hm."), ("text", "Let me see."), ("call", "get_weather", PARIS), ("call", "now", "{}")],
    ),
    (
        "kimi",
        "<think>",
        "I forget to stop.<|tool_calls_section_begin|>" + KIMI.format("now", 0, "{}") + "<|tool_calls_section_end|>",
        [("reasoning", "I forget to stop."), ("call", "now", "{}")],
    ),
    (
        "kimi",
        "<think>",
        "A <|tool_call_begin|> begins a call.</think>Yes.",
        [("reasoning", "A <|tool_call_begin|> begins a call."), ("text", "Yes.")],
    ),
    (
        "granite",
        "",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        [("call", "get_weather", PARIS), ("call", "now", "{}")],
    ),
    (
        "granite",
        "",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        [("call", "get_weather", PARIS)],
    ),
    (
        "granite",
        "",
        "<think>Hm.</think>\n<response>Yes.</response>",
        [("reasoning", "Hm."), ("text", "Yes.")],
    ),
    (
        "granite",
        "",
        "Here is my thought process:\n\nHm.\n\nHere is my response:\n\nYes.",
        [("reasoning", "Hm."), ("text", "Yes.")],
    ),
]


@pytest.mark.parametrize(("name", "prompt_end", "text", "parts"), GOLDEN)
def test_golden(name: str, prompt_end: str, text: str, parts: list[Part]) -> None:
    assert read(FORMATS[name], letters(text), prompt_end=prompt_end).parts == parts
    assert read(FORMATS[name], text, prompt_end=prompt_end).parts == parts


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "get_weather", "arguments": {"city": "Paris"}}',
        '{"arguments": {"city": "Paris"}, "name": "get_weather"}',
        '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
        '[{"id": 3, "name": "get_weather", "parameters": {"city": "Paris"}, "more": [null, {}]}]',
    ],
)
def test_ways_to_describe_a_call(written: str) -> None:
    for text, calls in ((f"<tool_call>{written}</tool_call>", CallMode.AUTO), (written, CallMode.JSON)):
        assert read(FORMATS["hermes"], letters(text), calls=calls).parts == [("call", "get_weather", PARIS)]


@pytest.mark.parametrize("written", ['{"name": "now"}', '{"name": "now", "arguments": null}'])
def test_a_call_without_arguments(written: str) -> None:
    assert read(FORMATS["hermes"], f"<tool_call>{written}</tool_call>").parts == [("call", "now", "{}")]


def test_arguments_are_passed_on_as_they_were_written() -> None:
    arguments = '{ "city" :\t"P\\u00e9\\/", "n": 1.50e+2 }'
    reading = read(FORMATS["hermes"], f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>')
    assert reading.parts == [("call", "get_weather", arguments)]


def test_a_forced_call_may_come_although_the_template_opened_reasoning() -> None:
    text = '{"name": "now", "arguments": {}}'
    reading = read(FORMATS["hermes"], letters(text), calls=CallMode.JSON, prompt_end="<think>\n")
    assert reading.parts == [("call", "now", "{}")]


def test_a_forced_call_behind_reasoning() -> None:
    text = '<think>Hm.</think>\n{"name": "now", "arguments": {}}'
    reading = read(FORMATS["hermes"], letters(text), calls=CallMode.JSON)
    assert reading.parts == [("reasoning", "Hm."), ("call", "now", "{}")]


def test_without_calls_what_looks_like_one_is_text() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    reading = read(FORMATS["hermes"], letters(f"<think>Hm.</think>{text}"), calls=CallMode.NONE)
    assert reading.parts == [("reasoning", "Hm."), ("text", text)]
