"""GLM-4.5 and later: ``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>``."""

from __future__ import annotations

import re

from anchorline.output.formats import hermes
from anchorline.output.formats.grammar import Grammar
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Broken, Source, Steps
from anchorline.output.formats.tagged_values import TaggedArguments
from anchorline.output.formats.values import UNSAID
from anchorline.output.markers import Markers

_KEY, _VALUE = "<arg_key>", "<arg_value>"
_KEY_END = "</arg_key>"
_NAME, _KEY_NAME = re.compile(r"[^\s<]*"), re.compile(r"[^\n<]*")
_VALUE_END = Markers(("</arg_value>",))


def _read_call(source: Source, sink: Sink) -> Steps[None]:
    yield from source.skip_space()
    name = yield from source.word(_NAME)
    arguments = TaggedArguments(source, sink, name)
    marker = yield from _next(source)
    while marker == _KEY:
        key = yield from source.word(_KEY_NAME)
        yield from source.expect(_KEY_END)
        yield from source.skip_space()
        yield from source.expect(_VALUE)
        yield from arguments.value(key.strip(), _VALUE_END, padded=False, unsaid=UNSAID)
        marker = yield from _next(source)
    arguments.finish()


def _next(source: Source) -> Steps[str]:
    yield from source.skip_space()
    marker = yield from source.accept_any((_KEY, hermes.CLOSE))
    if marker is None:
        raise Broken(f"neither {_KEY!r} nor {hermes.CLOSE!r} follows")
    return marker


GLM = ReaderFormat(
    name="glm",
    spelled=hermes.SPELLED | {_KEY, _KEY_END, _VALUE, "</arg_value>"},
    read=Grammar(
        calls={hermes.OPEN: _read_call}, calls_in_thinking=True, ignored=("<|begin_of_box|>", "<|end_of_box|>")
    ).read,
)
