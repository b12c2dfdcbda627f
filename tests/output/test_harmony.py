"""gpt-oss' Harmony: channels, recipients, and headers that the prompt has begun."""

from __future__ import annotations

import pytest

from anchorline.output.events import TextDelta
from anchorline.output.format import CallMode
from anchorline.output.formats import FORMATS
from tests.output.reading import Part, context, letters, read

HARMONY = FORMATS["harmony"]
START = "<|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'

GOLDEN: list[tuple[str, str, list[Part]]] = [
    (
        START,
        f"<|channel|>analysis<|message|>Hm.\n<|end|>{START}<|channel|>commentary<|message|>I look.<|end|>{START}{CALL}",
        [("reasoning", "Hm."), ("text", "I look."), ("call", "get_weather", '{"city": "Paris"}')],
    ),
    (
        START,
        f"<|channel|>analysis<|message|>Hm.<|end|>{START}<|channel|>final<|message|>Yes.\n\nIndeed.<|return|>",
        [("reasoning", "Hm."), ("text", "Yes.\n\nIndeed.")],
    ),
    (
        START,
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>',
        [("call", "get_weather", '{"city": "Paris"}')],
    ),
    (
        START,
        f"{CALL}<|call|>{START}<|channel|>commentary to=functions.now<|message|>{{}}",
        [("call", "get_weather", '{"city": "Paris"}'), ("call", "now", "{}")],
    ),
    (
        START + "<|channel|>analysis<|message|>",
        f"Hm.<|end|>{START}<|channel|>final<|message|>Yes.",
        [("reasoning", "Hm."), ("text", "Yes.")],
    ),
    (START + "<|channel|>final<|message|>", "Yes.", [("text", "Yes.")]),
    (START, "<|message|>Yes.", [("text", "Yes.")]),
    (START, "No header at all, to=you.", [("text", "No header at all, to=you.")]),
    ("", "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.", [("reasoning", "Hm."), ("text", "Yes.")]),
    (START, "<|channel|>final<|message|>Yes.<|end|>stray", [("text", "Yes.stray")]),
    (
        START,
        '<|channel|>commentary to=browser.open code<|message|>{"id": 1}<|call|>',
        [("text", '<|channel|>commentary to=browser.open code<|message|>{"id": 1}')],
    ),
    (
        START,
        f"<|channel|>analysis<|message|>Hm.<|end|>{START}<|channel|>fin",
        [("reasoning", "Hm.")],
    ),
]


@pytest.mark.parametrize(("prompt_end", "text", "parts"), GOLDEN)
def test_golden(prompt_end: str, text: str, parts: list[Part]) -> None:
    assert read(HARMONY, letters(text), prompt_end=prompt_end).parts == parts
    assert read(HARMONY, text, prompt_end=prompt_end).parts == parts


def test_a_header_without_an_end_is_text() -> None:
    text = "<|channel|>" + "word " * 200
    assert read(HARMONY, letters(text), prompt_end=START).content.split() == text.split()
    assert HARMONY.parser(context(prompt_end=START)).feed(TextDelta(0, text, ())), "it is not held back to the end"


@pytest.mark.parametrize("header", ["", "<|channel|>final<|message|>"])
def test_a_forced_call_with_and_without_a_header(header: str) -> None:
    text = header + '[{"name": "now", "arguments": {}}]'
    reading = read(HARMONY, letters(text), prompt_end=START, calls=CallMode.JSON)
    assert reading.parts == [("call", "now", "{}")]


def test_without_calls_a_recipient_makes_none() -> None:
    assert read(HARMONY, letters(CALL), prompt_end=START, calls=CallMode.NONE).parts == [("text", CALL)]
