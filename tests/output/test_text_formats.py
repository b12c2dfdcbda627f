"""Replies as the formats define them that write arguments as XML, Python or in words of their own."""

from __future__ import annotations

import pytest

from anchorline.output.events import TextDelta, ToolCallDelta
from anchorline.output.formats import FORMATS
from tests.output.reading import Part, context, letters, read

GOLDEN: list[tuple[str, str, str, list[Part]]] = [
    (
        "qwen-xml",
        "<think>\n",
        "Hm.\n</think>\n\nI look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\n  York\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=limits>\n[1, 2.5]\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [
            ("reasoning", "Hm."),
            ("text", "I look."),
            ("call", "get_weather", '{"city": "New\\n  York", "days": 3, "limits": [1, 2.5]}'),
            ("call", "now", "{}"),
        ],
    ),
    ("qwen-xml", "", "<function=now>\n</function>\n</tool_call>", [("call", "now", "{}")]),
    ("qwen-xml", "", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', [("call", "now", "{}")]),
    (
        "qwen-xml",
        "",
        "<function=get_weather><parameter=city>\n\n</parameter><parameter=unit>\n\n\n\n</parameter></function>",
        [("call", "get_weather", '{"city": "", "unit": "\\n\\n"}')],
    ),
    (
        "minimax",
        "<think>\n",
        'Hm.\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Paris</parameter>\n<parameter name="options">{"a": [1]}</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        [
            ("reasoning", "Hm."),
            ("text", "I look."),
            ("call", "get_weather", '{"city": "Paris", "options": {"a": [1]}}'),
            ("call", "now", "{}"),
        ],
    ),
    (
        "deepseek-v3.2",
        "<think>",
        'Hm.</think>I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="other" string="false">[1, 2]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [
            ("reasoning", "Hm."),
            ("text", "I look."),
            ("call", "get_weather", '{"city": "Paris", "other": [1, 2]}'),
        ],
    ),
    (
        "kimi-k3",
        "<|open|>think<|sep|>",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris'
        '<|close|>argument<|sep|><|open|>argument key="a&quot;b" type="array"<|sep|>[1]<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|open|>json type="object"<|sep|>{"a": 1}'
        "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        [
            ("reasoning", "Hm."),
            ("text", "I look."),
            ("call", "get_weather", '{"city": "Paris", "a\\"b": [1]}'),
            ("call", "now", '{"a": 1}'),
        ],
    ),
    (
        "glm",
        "",
        "\n<think>Hm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        [
            ("reasoning", "Hm."),
            ("text", "I look."),
            ("call", "get_weather", '{"city": "Paris", "exact": true}'),
            ("call", "now", "{}"),
        ],
    ),
    (
        "glm",
        "<think>",
        "</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>",
        [("call", "get_weather", '{"city": "Paris"}')],
    ),
    (
        "lfm2",
        "",
        "<|tool_call_start|>[get_weather(city='Paris', days=3, exact=True), now()]<|tool_call_end|>I look.",
        [
            ("call", "get_weather", '{"city": "Paris", "days": 3, "exact": true}'),
            ("call", "now", "{}"),
            ("text", "I look."),
        ],
    ),
    (
        "lfm2",
        "",
        """<|tool_call_start|>[get_weather(city='it's "so"', options={"a": None, 'b': (1, [2,])})]<|tool_call_end|>""",
        [("call", "get_weather", '{"city": "it\'s \\"so\\"", "options": {"a": null, "b": [1, [2]]}}')],
    ),
    (
        "lfm2",
        "",
        '<|tool_call_start|>[get_weather(city="""a\n"b" \\x41\\u00e9\\U0001f600\\d""")]<|tool_call_end|>',
        [("call", "get_weather", '{"city": "a\\n\\"b\\" \\u0041\\u00e9😀\\\\d"}')],
    ),
    ("lfm2", "", '<|tool_call_start|>[{"name": "now", "arguments": {}}]<|tool_call_end|>', [("call", "now", "{}")]),
    (
        "gemma",
        "",
        '```tool_code\nget_weather(city="Paris", days=2)\nnow()\n```',
        [("call", "get_weather", '{"city": "Paris", "days": 2}'), ("call", "now", "{}")],
    ),
    ("gemma", "", "```tool_code\nprint(default_api.now())\n```", [("call", "now", "{}")]),
    (
        "gemma",
        "",
        "[get_weather(city='Paris'), now()]",
        [("call", "get_weather", '{"city": "Paris"}'), ("call", "now", "{}")],
    ),
    (
        "gemma",
        "",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        [("call", "get_weather", '{"city": "Paris"}')],
    ),
    ("gemma", "", "[1, 2] is a list", [("text", "[1, 2] is a list")]),
    (
        "gemma4",
        "",
        '<|channel>thought\nHm.\n<channel|>I look.<|tool_call>call:get_weather{city:<|"|>Par"is<|"|>,days:3,'
        'options:{a:[1,<|"|>x<|"|>],b:true}}<tool_call|><|tool_call>call:now{}<tool_call|>',
        [
            ("reasoning", "Hm."),
            ("text", "I look."),
            ("call", "get_weather", '{"city": "Par\\"is", "days": 3, "options": {"a": [1, "x"], "b": true}}'),
            ("call", "now", "{}"),
        ],
    ),
    ("gemma4", "<|channel>thought\n<channel|>", "Yes.", [("text", "Yes.")]),
    (
        "functiongemma",
        "",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>",
        [("call", "get_weather", '{"city": "Paris", "days": 3}')],
    ),
]


@pytest.mark.parametrize(("name", "prompt_end", "text", "parts"), GOLDEN)
def test_golden(name: str, prompt_end: str, text: str, parts: list[Part]) -> None:
    assert read(FORMATS[name], letters(text), prompt_end=prompt_end).parts == parts
    assert read(FORMATS[name], text, prompt_end=prompt_end).parts == parts


def test_the_text_of_a_string_is_passed_on_while_it_comes() -> None:
    for name, text in (
        ("qwen-xml", "<function=get_weather><parameter=city>\nlong text"),
        ("lfm2", "<|tool_call_start|>[get_weather(city='long text"),
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>long text'),
    ):
        events = FORMATS[name].parser(context()).feed(TextDelta(0, text, ()))
        assert isinstance(events[-1], ToolCallDelta)
        assert events[-1].arguments.endswith("long text")
