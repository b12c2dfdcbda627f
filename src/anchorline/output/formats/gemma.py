"""Gemma, in three generations.

* Gemma 4: ``<|tool_call>call:NAME{key:<|"|>text<|"|>,days:3}<tool_call|>``, reasoning in ``<|channel>thought``.
* FunctionGemma: ``<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>``.
* Gemma 3 has no format of its own; it was trained on Python calls in a block of ``tool_code``, and it
  also writes a bare list of Python calls or bare JSON when it is asked to.
"""

from __future__ import annotations

from dataclasses import dataclass

from anchorline.output.format import ReasoningTags
from anchorline.output.formats.grammar import THINK, Bare, Grammar, Thinking
from anchorline.output.formats.json_calls import json_calls
from anchorline.output.formats.literals import LiteralStyle
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.pythonic_calls import NAME, call_arguments, listed_calls, pythonic_call
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Source, Steps


@dataclass(frozen=True, slots=True)
class _Marks:
    """What a generation writes around calls and strings."""

    open: str
    close: str
    quote: str

    def read(self, source: Source, sink: Sink) -> Steps[None]:
        """Read a call behind its opening marker. Raises Broken."""
        style = LiteralStyle(quotes=(self.quote,), separator=":", python=False)
        yield from source.expect("call:")
        name = yield from source.word(NAME)
        yield from source.expect("{")
        yield from call_arguments(source, sink, name, close="}", style=style)
        yield from source.skip_space()
        yield from source.accept(self.close)


_GEMMA4 = _Marks("<|tool_call>", "<tool_call|>", '<|"|>')
_FUNCTION_GEMMA = _Marks("<start_function_call>", "<end_function_call>", "<escape>")
_THOUGHT = Thinking("<|channel>thought", "<channel|>")
_CODE, _CODE_END = "```tool_code", "```"
_PRINT, _MODULE = "print(", "default_api."
"""What the model was taught to put before a call."""


def _read_code(source: Source, sink: Sink) -> Steps[None]:
    """Calls one below the other, or a list, up to the end of the block."""
    yield from source.skip_space()
    if (yield from source.peek()) == "[":
        yield from listed_calls(source, sink)
        yield from source.skip_space()
        yield from source.accept(_CODE_END)
        return
    while True:
        printed = yield from source.accept(_PRINT)
        yield from source.accept(_MODULE)
        yield from pythonic_call(source, sink)
        yield from source.skip_space()
        if printed:
            yield from source.accept(")")
            yield from source.skip_space()
        source.record()
        if (yield from source.accept(_CODE_END)) or not (yield from source.peek()):
            return


def _read_bare(source: Source, sink: Sink) -> Steps[None]:
    if (yield from source.peek()) == "[":
        yield from listed_calls(source, sink)
    else:
        yield from json_calls(source, sink, strict=True)


GEMMA4 = ReaderFormat(
    name="gemma4",
    spelled=frozenset({_GEMMA4.open, _GEMMA4.close, _GEMMA4.quote, "<|channel>", _THOUGHT.close}),
    read=Grammar(calls={_GEMMA4.open: _GEMMA4.read}, thinking=(_THOUGHT,), calls_in_thinking=True).read,
    reasoning=ReasoningTags(begin=f"{_THOUGHT.open}\n", end=_THOUGHT.close),
)
FUNCTION_GEMMA = ReaderFormat(
    name="functiongemma",
    spelled=frozenset({_FUNCTION_GEMMA.open, _FUNCTION_GEMMA.close, _FUNCTION_GEMMA.quote, THINK.open, THINK.close}),
    read=Grammar(calls={_FUNCTION_GEMMA.open: _FUNCTION_GEMMA.read}).read,
)
GEMMA = ReaderFormat(
    name="gemma",
    spelled=frozenset(),
    read=Grammar(calls={_CODE: _read_code}, bare=Bare(starts="[{", read=_read_bare)).read,
)
