"""Granite 3: ``<|tool_call|>[{"name": …, "arguments": {…}}]``. Granite 4 writes Hermes' format, read here as well."""

from __future__ import annotations

from anchorline.output.format import CallTag
from anchorline.output.formats import hermes
from anchorline.output.formats.grammar import THINK, Grammar, Thinking
from anchorline.output.formats.json_calls import bare_calls
from anchorline.output.formats.json_text import quote
from anchorline.output.formats.machine import ReaderFormat

OPEN = "<|tool_call|>"
_THOUGHT = Thinking("Here is my thought process:", "Here is my response:")


def _tag(tool: str) -> CallTag:
    return CallTag(begin=f'{OPEN}[{{"name": {quote(tool)}, "arguments": ', end="}]", trigger=OPEN)


GRANITE = ReaderFormat(
    name="granite",
    spelled=hermes.SPELLED | {OPEN, "<response>", "</response>"},
    read=Grammar(
        calls={OPEN: bare_calls, hermes.OPEN: hermes.read_call},
        thinking=(THINK, _THOUGHT),
        ignored=("<response>", "</response>"),
    ).read,
    tag=_tag,
)
