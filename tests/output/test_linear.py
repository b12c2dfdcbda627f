"""Reading costs time in proportion to the text, however long a value is and however small the pieces."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from anchorline.output.formats import FORMATS
from anchorline.output.formats.source import Source
from tests.output.reading import letters, read

LONG: dict[str, tuple[str, str, str]] = {
    "hermes": ('<tool_call>{"name": "now", "arguments": {"a": "', "text <\\n ", '"}}</tool_call>'),
    "qwen-xml": ("<function=now><parameter=a>\n", "text </ \n", "\n</parameter></function>"),
    "glm": ("<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>", "text </ \n", "</arg_value></tool_call>"),
    "lfm2": ("<|tool_call_start|>[now(a='", "it's <\\n ", "')]<|tool_call_end|>"),
    "gemma4": ('<|tool_call>call:now{a:<|"|>', "text < \n", '<|"|>}<tool_call|>'),
    "harmony": ('<|channel|>commentary to=functions.now<|message|>{"a": "', "text <\\n ", '"}'),
}
OTHER = {
    "arguments before the name": ('<tool_call>{"arguments": {"a": "', "text ", '"}, "name": "now"}</tool_call>'),
    "many numbers": ('<tool_call>{"name": "now", "arguments": {"a": [', "1234567, ", "0]}}</tool_call>"),
    "much white space": ('<tool_call>{"name": "now", "arguments": {"a": 1,', " \n", "}}</tool_call>"),
    "reasoning": ("<think>", "text \n\n", "</think>"),
    "white space": ("a", " \n", "b"),
    "half markers": ("", "<tool_cal", ""),
    "broken calls": ("", "<tool_call>x", ""),
    "many calls": ("", '<tool_call>{"name": "now"}</tool_call>', ""),
}
CASES = [*LONG.items(), *(("hermes", case) for case in OTHER.values())]


class Work:
    """Counts calls of functions, and characters that a source copies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.copied = 0
        add = Source.add

        def counting(source: Source, text: str) -> None:
            add(source, text)
            self.copied += len(source.buffer)

        monkeypatch.setattr(Source, "add", counting)

    def of(self, name: str, pieces: list[str]) -> tuple[int, int]:
        self.calls = self.copied = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            self.calls += event.endswith("call")

        sys.setprofile(count)
        try:
            read(FORMATS[name], pieces)
        finally:
            sys.setprofile(None)
        return self.calls, self.copied


@pytest.mark.parametrize(("name", "case"), CASES)
def test_twice_the_text_is_twice_the_work(
    name: str, case: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, middle, end = case
    work = Work(monkeypatch)

    def of(repeated: int) -> tuple[int, int]:
        return work.of(name, letters(begin + middle * repeated + end))

    once, twice = of(100), of(200)
    assert twice[0] < 2.3 * once[0]
    assert twice[1] < 2.3 * once[1]
    assert twice[1] < 40 * len(middle) * 200


@pytest.mark.parametrize("name", ["hermes", "qwen-xml"])
def test_a_value_of_200_kb_character_by_character(name: str) -> None:
    begin, middle, end = LONG[name]
    reading = read(FORMATS[name], letters(begin + middle * (200_000 // len(middle)) + end))
    ((called, arguments),) = reading.calls
    assert called == "now"
    assert len(arguments["a"]) > 150_000
