"""Llama 3.x: bare ``{"name": …, "parameters": {…}}``, or behind ``<|python_tag|>`` that or Python.

Several calls are separated by a semicolon. ``<function=NAME>{…}</function>``, which Meta documents for
prompts of one's own, is read too.
"""

from __future__ import annotations

import re

from anchorline.output.format import CallTag
from anchorline.output.formats.grammar import Bare, Grammar
from anchorline.output.formats.json_calls import json_arguments, json_calls
from anchorline.output.formats.json_text import quote, quote_part
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.pythonic_calls import call_arguments
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Broken, Source, Steps
from anchorline.output.markers import Markers

PYTHON_TAG = "<|python_tag|>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_NAME = re.compile(r"[^>\s]*")
_CODE_NAME = re.compile(r"[\w.]*")
_CODE_TOOLS = ("code_interpreter", "ipython", "python")
_NOTHING = Markers(())


def _read_bare(source: Source, sink: Sink) -> Steps[None]:
    yield from json_calls(source, sink, strict=True)
    yield from source.skip_space()
    yield from source.accept(";")


def _read_tagged(source: Source, sink: Sink) -> Steps[None]:
    yield from source.skip_space()
    if (yield from source.peek()) in ("{", "["):
        yield from _read_bare(source, sink)
        return
    name = yield from source.word(_CODE_NAME)
    if name.endswith(".call") and (yield from source.accept("(")):
        yield from call_arguments(source, sink, name.removesuffix(".call"))
    else:
        yield from _read_code(source, sink, name)


def _read_code(source: Source, sink: Sink, beginning: str) -> Steps[None]:
    """The rest of the reply is code for the interpreter. Raises Broken when there is no such tool."""
    tool = next((name for name in _CODE_TOOLS if name in sink.context.tools), None)
    if tool is None:
        raise Broken("code without a tool that runs it")
    sink.start_call(tool)
    sink.write('{"code": "' + quote_part(beginning))
    yield from source.pour(_NOTHING, lambda text: sink.write(quote_part(text)))
    if not sink.cut_short:
        sink.write('"}')
        sink.finish_call()


def _read_function(source: Source, sink: Sink) -> Steps[None]:
    name = yield from source.word(_NAME)
    yield from source.expect(">")
    yield from json_arguments(source, sink, name)
    yield from source.skip_space()
    yield from source.accept(_FUNCTION_END)


def _tag(tool: str) -> CallTag:
    return CallTag(begin=f'{{"name": {quote(tool)}, "parameters": ', end="}", trigger='{"name": ')


LLAMA = ReaderFormat(
    name="llama",
    spelled=frozenset({PYTHON_TAG, "<think>", "</think>"}),
    read=Grammar(
        calls={PYTHON_TAG: _read_tagged, _FUNCTION: _read_function}, bare=Bare(starts="{[", read=_read_bare)
    ).read,
    tag=_tag,
)
