"""LFM2: a list of Python calls between ``<|tool_call_start|>`` and ``<|tool_call_end|>``."""

from __future__ import annotations

from anchorline.output.formats.grammar import Grammar
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.pythonic_calls import listed_calls
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Source, Steps

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"


def _read_calls(source: Source, sink: Sink) -> Steps[None]:
    yield from listed_calls(source, sink)
    yield from source.skip_space()
    yield from source.accept(CLOSE)


LFM2 = ReaderFormat(
    name="lfm2",
    spelled=frozenset({OPEN, CLOSE, "<think>", "</think>"}),
    read=Grammar(calls={OPEN: _read_calls}, calls_in_thinking=True).read,
)
