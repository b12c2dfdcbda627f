"""Calls that are damaged, unknown or cut off: text with a reason, or as much of a call as was announced."""

from __future__ import annotations

import logging

import pytest

from anchorline.engine.request import FinishReason
from anchorline.output.events import ChoiceFinished, ReplyEvent, TextDelta, ToolCallStarted
from anchorline.output.formats import FORMATS
from anchorline.output.formats.sink import LOG_LIMIT
from tests.output.reading import Part, context, letters, read

HERMES = FORMATS["hermes"]

LEFT_AS_TEXT = [
    ("hermes", '<tool_call>\n{"name": "nope", "arguments": {"a": 1}}\n</tool_call>', "'nope' is not among the tools"),
    ("hermes", "use <tool_call> for that", "'f' instead of '{'"),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "it has no name"),
    ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>', "the arguments are no JSON object"),
    ("hermes", '<tool_call>{"name": "now", "arguments": "[1]"}</tool_call>', "a string that is no JSON object"),
    ("hermes", '<tool_call>{"name": 5}</tool_call>', """'5' instead of '"'"""),
    ("hermes", "<tool_call>[]</tool_call>", "an empty list of calls"),
    ("hermes", '<tool_call>{"name": "no', "unfinished JSON"),
    ("qwen-xml", "<tool_call>\n<function=nope>\n</function>\n</tool_call>", "'nope' is not among the tools"),
    ("qwen-xml", "<function=now>\noh\n</function>", "neither '<parameter=' nor '</function>' follows"),
    ("lfm2", "<|tool_call_start|>[now(5)]", "')' instead of '='"),
    ("glm", "<tool_call>nope\n</tool_call>", "'nope' is not among the tools"),
    ("llama", "<|python_tag|>nope.call()", "'nope' is not among the tools"),
    ("mistral", "[TOOL_CALLS]nope[ARGS]{}", "'nope' is not among the tools"),
    ("deepseek-v3", "<｜tool▁calls▁begin｜>now", "'n' instead of '<｜tool▁call▁begin｜>'"),
    ("kimi", "<|tool_call_begin|>functions.nope:0<|tool_call_argument_begin|>{}", "'nope' is not among the tools"),
    ("lfm2", "<|tool_call_start|>[]<|tool_call_end|>", "an empty list of calls"),
    ("gemma4", "<|tool_call>now{}", "'n' instead of 'call:'"),
    ("granite", "<|tool_call|>nothing", "'n' instead of '{'"),
    ("minimax", '<minimax:tool_call><invoke name="nope"></invoke>', "'nope' is not among the tools"),
]


@pytest.mark.parametrize(("name", "text", "reason"), LEFT_AS_TEXT)
def test_text_with_a_reason(name: str, text: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    text = f"Well:\n\n{text}\nafter"
    assert "".join(read(FORMATS[name], letters(text)).content.split()) == "".join(text.split())
    lines = [record.getMessage() for record in caplog.records if record.name == "anchorline.output"]
    if "it ends" not in reason and "unfinished" not in reason:
        assert any(reason in line for line in lines)
    assert lines
    assert all("\n" not in line for line in lines)


CLOSED: list[tuple[str, str, list[Part]]] = [
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": [1, tru]}}</tool_call>',
        [("call", "now", '{"a": [1, null]}'), ("text", "]}}</tool_call>")],
    ),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "b', [("call", "now", '{"a": "b"}')]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1, ', [("call", "now", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a"', [("call", "now", '{"a": null}')]),
    (
        "qwen-xml",
        "<function=get_weather>\n<parameter=city>\nPar",
        [("call", "get_weather", '{"city": "Par"}')],
    ),
    ("lfm2", "<|tool_call_start|>[now(a=[1, ", [("call", "now", '{"a": [1]}')]),
    ("gemma4", '<|tool_call>call:now{a:<|"|>b', [("call", "now", '{"a": "b"}')]),
    ("glm", "<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>b", [("call", "now", '{"a": "b"}')]),
]


@pytest.mark.parametrize(("name", "text", "parts"), CLOSED)
def test_announced_calls_are_completed(
    name: str, text: str, parts: list[Part], caplog: pytest.LogCaptureFixture
) -> None:
    assert read(FORMATS[name], letters(text)).parts == parts
    assert "the arguments of a tool call were cut off" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "b', '{"a": "b'),
        ("qwen-xml", "<function=now>\n<parameter=a>\nb\n</parameter>\n</func", '{"a": "b"'),
        ("llama", "<|python_tag|>print(1", '{"code": "print(1'),
        ("lfm2", "<|tool_call_start|>[now(a='b", '{"a": "b'),
    ],
)
def test_a_call_cut_by_length_stays_open(
    name: str, text: str, arguments: str, caplog: pytest.LogCaptureFixture
) -> None:
    reading = read(FORMATS[name], letters(text), reason=FinishReason.LENGTH)
    assert [part[0] for part in reading.parts] == ["open call"]
    assert reading.parts[0][2:] == (arguments,)
    assert reading.finished == ChoiceFinished(0, FinishReason.LENGTH, None, calls=0)
    assert not caplog.records


def test_complete_calls_before_a_cut_are_counted() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call><tool_call>{"name": "now", "argum'
    reading = read(HERMES, letters(text), reason=FinishReason.LENGTH)
    assert reading.parts == [("call", "now", "{}"), ("text", '<tool_call>{"name": "now", "argum')]
    assert reading.finished is not None
    assert reading.finished.calls == 1


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "now", "arguments": {}}',
        '<tool_call>{"name": "now", "arguments": {}',
        '<tool_call>{"name": "now", "arguments": {}}\n</tool_',
    ],
)
def test_a_missing_end_behind_the_arguments_is_no_fault(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert read(HERMES, letters(text)).calls == [("now", {})]
    assert not caplog.records


def test_a_good_call_of_a_list_stands_when_the_next_is_broken() -> None:
    text = '[{"name": "now", "arguments": {}}, {"name": "nope", "arguments": {}}]'
    reading = read(FORMATS["granite"], letters(f"<|tool_call|>{text}"))
    assert reading.parts == [("call", "now", "{}"), ("text", '{"name": "nope", "arguments": {}}]')]


@pytest.mark.parametrize("text", ["<think></think>\n", "<think>\n\n", "</think>", " \n"])
def test_a_reply_of_nothing_but_marks_is_shown(text: str) -> None:
    assert read(HERMES, letters(text)).parts == [("text", text)]


def test_nothing_but_marks_before_a_cut_is_nothing() -> None:
    assert read(HERMES, letters("<think>\n"), reason=FinishReason.LENGTH).parts == []


def test_white_space_around_blocks_is_dropped_and_kept_within_text() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    reading = read(HERMES, letters(f" \n{call}\n\n a\n\n b \n{call}\n"))
    assert reading.parts == [("call", "now", "{}"), ("text", "a\n\n b"), ("call", "now", "{}")]


def test_a_call_is_announced_only_for_a_tool() -> None:
    def first(name: str) -> ReplyEvent:
        text = f'<tool_call>{{"name": "{name}", "arguments": {{"a": 1'
        return HERMES.parser(context()).feed(TextDelta(0, text, ()))[0]

    assert isinstance(first("nope"), TextDelta)
    assert first("now") == ToolCallStarted(0, 0, "call_0", "now")


def test_the_log_of_one_reply_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    read(HERMES, "<tool_call>" * 1000)
    assert len(caplog.records) == LOG_LIMIT


def test_bare_json_that_is_no_call_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert read(FORMATS["llama"], '{"answer": 4}').content == '{"answer": 4}'
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": ' + "[" * 5000),
        ("hermes", "<tool_call>" + '{"function": ' * 5000),
        ("lfm2", "<|tool_call_start|>[now(a=" + "[" * 5000),
        ("lfm2", "<|tool_call_start|>[now(a=" + "{'a':" * 5000),
        ("gemma4", "<|tool_call>call:now{a:" + "{a:" * 5000),
        ("qwen-xml", "<function=get_weather><parameter=options>" + "[" * 5000 + "</parameter>"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": ' + "1" * 5000),
        ("lfm2", "<|tool_call_start|>[now(a=" + "1" * 5000),
        ("harmony", "<|channel|>" + "x" * 5000),
    ],
)
def test_nothing_nests_or_grows_without_bound(name: str, text: str) -> None:
    assert read(FORMATS[name], text).finished is not None


def test_choices_are_read_apart() -> None:
    parser = HERMES.parser(context())
    events: list[ReplyEvent] = []
    for choice in (0, 1):
        events += parser.feed(TextDelta(choice, "<tool_", ()))
    events += parser.feed(TextDelta(0, "x", ()))
    events += parser.feed(TextDelta(1, 'call>{"name": "now"}', ()))
    assert events[0] == TextDelta(0, "<tool_x", ())
    assert [type(event).__name__ for event in events[1:]] == ["ToolCallStarted", "ToolCallDelta", "ToolCallFinished"]
