"""Whatever a model writes, and however it is split: the same events, none lost, none out of order, no exception."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.engine.request import FinishReason
from anchorline.output.format import CallMode, ReplyFormat
from anchorline.output.formats import FORMATS
from tests.output.reading import Reading, letters, read

MARKS: dict[str, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "qwen-xml": (
        "<tool_call>",
        "</tool_call>",
        "<function=now>",
        "<function=",
        "</function>",
        "<parameter=city>",
        "<parameter=days>",
        "</parameter>",
        ">",
    ),
    "llama": ("<|python_tag|>", "<function=now>", "</function>", ";", "now.call(", ")"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "now"),
    "deepseek-v3": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "function",
        "<｜tool▁sep｜>",
        "now",
        "\n```json\n",
        "```",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.2": (
        "<｜DSML｜function_calls>",
        '<｜DSML｜invoke name="now">',
        "</｜DSML｜invoke>",
        '<｜DSML｜parameter name="city" string="true">',
        "</｜DSML｜parameter>",
        "</｜DSML｜function_calls>",
    ),
    "harmony": (
        "<|start|>",
        "assistant",
        "<|channel|>",
        "analysis",
        "final",
        "commentary",
        " to=functions.now ",
        "<|constrain|>json",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ),
    "gemma": ("```tool_code", "```", "now(", ")", "[", "]", "city=", "'", '"', "\\"),
    "gemma4": ("<|tool_call>", "call:now{", "city:", '<|"|>', "}", "<tool_call|>", "<|channel>thought\n", "<channel|>"),
    "functiongemma": ("<start_function_call>", "call:now{", "city:", "<escape>", "}", "<end_function_call>"),
    "glm": ("<tool_call>", "now", "<arg_key>", "city", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
    "kimi": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "functions.now:0",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi-k3": (
        "<|open|>tools<|sep|>",
        '<|open|>call tool="now" index="1"<|sep|>',
        '<|open|>argument key="city" type="string"<|sep|>',
        "<|close|>argument<|sep|>",
        '<|open|>json type="object"<|sep|>',
        "<|close|>json<|sep|>",
        "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
    ),
    "lfm2": ("<|tool_call_start|>", "[", "now(", "city=", "'", '"', "\\", ")", "]", "<|tool_call_end|>"),
    "granite": (
        "<|tool_call|>",
        "<tool_call>",
        "</tool_call>",
        "<response>",
        "</response>",
        "Here is my thought process:",
        "Here is my response:",
    ),
    "minimax": (
        "<minimax:tool_call>",
        '<invoke name="now">',
        '<parameter name="city">',
        "</parameter>",
        "</invoke>",
        "</minimax:tool_call>",
    ),
}
COMMON = (
    *(
        "<think>",
        "</think>",
        "\n",
        " ",
        "\n\n",
        "text",
        "é",
        "😀",
        "<",
        "{",
        "}",
        "[",
        "]",
        ",",
        '"',
        "\\",
        "1",
        "-",
        "tru",
    ),
    *(
        '{"name": "now", "arguments": {}}',
        '{"name": "nope", "arguments": {}}',
        '{"arguments": {"a": 1}, "name": "now"}',
    ),
    *(
        '{"name": "now", "arguments": ',
        '{"a": [1, {"b": null}], "c": "d\\n"}',
        '{"city": "Par',
        '"arguments": "{}"',
        "null",
    ),
)
NAMES = sorted(MARKS)
assert set(FORMATS) - set(NAMES) == {"deepseek-v3.1", "mistral-named"}, "which have grammars of others"
PROMPTS = ("", "<think>\n", "<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>")


@st.composite
def replies(draw: st.DrawFn) -> tuple[ReplyFormat, str]:
    """A format and a text of its markers, whole, cut and shuffled."""
    name = draw(st.sampled_from(NAMES))
    piece = st.sampled_from(MARKS[name] * 2 + COMMON)
    cut = st.builds(lambda text, end: text[:end], piece, st.integers(0, 8))
    return FORMATS[name], "".join(draw(st.lists(st.one_of(piece, piece, piece, cut), max_size=25)))


def split(text: str, lengths: Sequence[int]) -> list[str]:
    pieces = []
    for length in lengths:
        pieces.append(text[:length])
        text = text[length:]
    return [*pieces, text]


@settings(max_examples=400, deadline=None)
@given(
    reply=replies(),
    lengths=st.lists(st.integers(0, 12), max_size=40),
    calls=st.sampled_from(CallMode),
    prompt_end=st.sampled_from(PROMPTS),
    reason=st.sampled_from(FinishReason),
)
def test_any_text_split_anyhow_reads_the_same(
    reply: tuple[ReplyFormat, str], lengths: list[int], calls: CallMode, prompt_end: str, reason: FinishReason
) -> None:
    reply_format, text = reply

    def reading(pieces: str | list[str]) -> Reading:
        return read(reply_format, pieces, calls=calls, prompt_end=prompt_end, reason=reason)

    whole = reading(text)
    assert reading(split(text, lengths)).parts == whole.parts
    assert reading(letters(text)).parts == whole.parts
    if reason is FinishReason.STOP:
        assert bool(whole.parts) == bool(text), "a reply with text is never empty"
    if calls is CallMode.NONE:
        assert not whole.calls


@settings(max_examples=200, deadline=None)
@given(reply=replies())
def test_no_text_is_lost_where_nothing_is_made_of_it(reply: tuple[ReplyFormat, str]) -> None:
    reply_format, text = reply
    if any(mark in text for mark in ("think", "THINK", "response", "thought", "channel", "<|start|>")):
        return
    reading = read(reply_format, text, tools={})
    assert reading.content.split() == text.split()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_plain_text_is_content_as_it_is(name: str) -> None:
    text = "  Two  words,\n\nand `code`: [1, 2] < 3.\n"
    assert read(FORMATS[name], letters(text)).parts == [("text", text)]
