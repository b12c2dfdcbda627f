"""Kimi K2: ``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`` in a section."""

from __future__ import annotations

import re

from anchorline.output.format import CallTag
from anchorline.output.formats.grammar import Grammar
from anchorline.output.formats.json_calls import json_arguments
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Source, Steps
from anchorline.output.formats.xml_calls import section

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_IDENTITY = re.compile(r"[^\s<]*")


def _read_call(source: Source, sink: Sink) -> Steps[None]:
    yield from source.skip_space()
    identity = yield from source.word(_IDENTITY)
    yield from source.skip_space()
    yield from source.expect(ARGUMENTS)
    name, _, number = identity.removeprefix("functions.").rpartition(":")
    yield from json_arguments(source, sink, name or number)
    sink.last_call_is(identity)
    yield from source.skip_space()
    yield from source.accept(CALL_END)


def _tag(tool: str) -> CallTag:
    return CallTag(
        begin=f"{SECTION}{CALL}functions.{tool}:0{ARGUMENTS}", end=f"{CALL_END}{SECTION_END}", trigger=SECTION
    )


KIMI = ReaderFormat(
    name="kimi",
    spelled=frozenset({SECTION, SECTION_END, CALL, CALL_END, ARGUMENTS, "<think>", "</think>"}),
    read=Grammar(
        calls={SECTION: section(CALL, _read_call, SECTION_END), CALL: _read_call}, calls_in_thinking=True
    ).read,
    tag=_tag,
)
