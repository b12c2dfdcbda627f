"""Hermes and Qwen: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from __future__ import annotations

from anchorline.output.format import CallTag
from anchorline.output.formats.grammar import Grammar
from anchorline.output.formats.json_calls import json_calls
from anchorline.output.formats.json_text import quote
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Source, Steps

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SPELLED = frozenset({OPEN, CLOSE, "<think>", "</think>"})


def read_call(source: Source, sink: Sink) -> Steps[None]:
    """Behind the opening tag. A missing closing tag is no fault. Raises Broken."""
    yield from json_calls(source, sink)
    yield from source.skip_space()
    yield from source.accept(CLOSE)


def _tag(tool: str) -> CallTag:
    begin = f'{OPEN}\n{{"name": {quote(tool)}, "arguments": '
    return CallTag(begin=begin, end=f"}}\n{CLOSE}", trigger=OPEN)


HERMES = ReaderFormat(name="hermes", spelled=SPELLED, read=Grammar(calls={OPEN: read_call}).read, tag=_tag)
