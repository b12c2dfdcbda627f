"""MiniMax-M2: ``<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>…``."""

from __future__ import annotations

from anchorline.output.formats.grammar import Grammar
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.xml_calls import XmlStyle, section

OPEN, CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_STYLE = XmlStyle(call="<invoke name=", call_end="</invoke>", value="<parameter name=", value_end="</parameter>")

MINIMAX = ReaderFormat(
    name="minimax",
    spelled=frozenset({OPEN, CLOSE, "<think>", "</think>"}),
    read=Grammar(calls={OPEN: section(_STYLE.call, _STYLE.read, CLOSE)}, calls_in_thinking=True).read,
)
