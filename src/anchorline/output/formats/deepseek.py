"""DeepSeek, in three generations that one grammar reads; they differ in how a call is to be asked for.

* V3 and R1: ``<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME``, then the arguments in a block of ``json``.
* V3.1: ``<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>``.
* V3.2 and V4: XML-like elements (``<｜DSML｜invoke name="NAME">``).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from anchorline.output.format import CallTag
from anchorline.output.formats.grammar import Grammar
from anchorline.output.formats.json_calls import json_arguments
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Source, Steps
from anchorline.output.formats.xml_calls import XmlStyle, section

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
DSML = "｜DSML｜"
_FENCE = "```"
_NAME = re.compile(r"[^\s<]*")
_STYLE = XmlStyle(
    call=f"<{DSML}invoke name=",
    call_end=f"</{DSML}invoke>",
    value=f"<{DSML}parameter name=",
    value_end=f"</{DSML}parameter>",
)


def _read_call(source: Source, sink: Sink) -> Steps[None]:
    name = yield from _name(source)
    yield from source.expect(SEPARATOR)
    if name == "function" and name not in sink.context.tools:
        name = yield from _name(source)
    fenced = yield from source.accept(_FENCE)
    if fenced:
        yield from source.accept("json")
    yield from json_arguments(source, sink, name)
    yield from source.skip_space()
    if fenced:
        yield from source.accept(_FENCE)
    yield from source.accept(CALL_END)


def _name(source: Source) -> Steps[str]:
    yield from source.skip_space()
    name = yield from source.word(_NAME)
    yield from source.skip_space()
    return name


def _tag_v3(tool: str) -> CallTag:
    begin = f"{SECTION}{CALL}function{SEPARATOR}{tool}\n{_FENCE}json\n"
    return CallTag(begin=begin, end=f"\n{_FENCE}{CALL_END}{SECTION_END}", trigger=SECTION)


def _tag_v3_1(tool: str) -> CallTag:
    return CallTag(begin=f"{SECTION}{CALL}{tool}{SEPARATOR}", end=f"{CALL_END}{SECTION_END}", trigger=SECTION)


_GRAMMAR = Grammar(
    calls={
        SECTION: section(CALL, _read_call, SECTION_END),
        CALL: _read_call,
        f"<{DSML}function_calls>": section(_STYLE.call, _STYLE.read, f"</{DSML}function_calls>"),
        f"<{DSML}tool_calls>": section(_STYLE.call, _STYLE.read, f"</{DSML}tool_calls>"),
    },
    calls_in_thinking=True,
)


def _generation(name: str, tag: Callable[[str], CallTag] | None) -> ReaderFormat:
    marks = {SECTION, SECTION_END, CALL, CALL_END, SEPARATOR, DSML, "<think>", "</think>"}
    return ReaderFormat(name=name, spelled=frozenset(marks), read=_GRAMMAR.read, tag=tag)


DEEPSEEK_V3 = _generation("deepseek-v3", _tag_v3)
DEEPSEEK_V3_1 = _generation("deepseek-v3.1", _tag_v3_1)
DEEPSEEK_V3_2 = _generation("deepseek-v3.2", None)
