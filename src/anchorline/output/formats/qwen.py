"""Qwen3-Coder and Qwen3.5: ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``."""

from __future__ import annotations

from anchorline.output.formats import hermes
from anchorline.output.formats.grammar import Grammar
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Source, Steps
from anchorline.output.formats.xml_calls import XmlStyle, section

_STYLE = XmlStyle(call="<function=", call_end="</function>", value="<parameter=", value_end="</parameter>", padded=True)
_read_section = section(_STYLE.call, _STYLE.read, hermes.CLOSE)


def _read_call(source: Source, sink: Sink) -> Steps[None]:
    yield from source.skip_space()
    if (yield from source.peek()) == "{":
        yield from hermes.read_call(source, sink)
    else:
        yield from _read_section(source, sink)


def _read_untagged(source: Source, sink: Sink) -> Steps[None]:
    """A call whose ``<tool_call>`` the model forgot."""
    yield from _STYLE.read(source, sink)
    yield from source.skip_space()
    yield from source.accept(hermes.CLOSE)


QWEN = ReaderFormat(
    name="qwen-xml",
    spelled=hermes.SPELLED,
    read=Grammar(calls={hermes.OPEN: _read_call, _STYLE.call: _read_untagged}, calls_in_thinking=True).read,
)
