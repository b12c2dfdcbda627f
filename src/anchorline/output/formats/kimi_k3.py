"""Kimi K3: elements whose tags are written between ``<|open|>`` or ``<|close|>`` and ``<|sep|>``.

``<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>
VALUE<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>``; all arguments may also be one ``json``
element. Reasoning and the answer are elements of their own, ``think`` and ``response``.
"""

from __future__ import annotations

import re

from anchorline.output.format import ReasoningTags
from anchorline.output.formats.grammar import Grammar, Thinking
from anchorline.output.formats.json_calls import json_arguments
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Broken, Source, Steps
from anchorline.output.formats.tagged_values import TaggedArguments
from anchorline.output.formats.values import UNSAID, WRITTEN_JSON
from anchorline.output.formats.xml_calls import section
from anchorline.output.markers import Markers

OPEN, CLOSE, SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_HEAD = re.compile(r"[^<]*")


def _opening(tag: str) -> str:
    return f"{OPEN}{tag}{SEPARATOR}"


def _closing(tag: str) -> str:
    return f"{CLOSE}{tag}{SEPARATOR}"


TOOLS = _opening("tools")
_CALL, _CALL_END = f"{OPEN}call ", _closing("call")
_ARGUMENT, _ARGUMENT_END = f"{OPEN}argument ", _closing("argument")
_JSON, _JSON_END = f"{OPEN}json", _closing("json")
_VALUE_END = Markers((_ARGUMENT_END,))


def _attributes(source: Source) -> Steps[dict[str, str]]:
    """Read the rest of an opening tag. Raises Broken."""
    head = yield from source.word(_HEAD)
    yield from source.expect(SEPARATOR)
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(head)}


def _read_call(source: Source, sink: Sink) -> Steps[None]:
    name = (yield from _attributes(source)).get("tool", "")
    yield from source.skip_space()
    if (yield from source.accept(_JSON)):
        yield from _attributes(source)
        yield from json_arguments(source, sink, name)
        yield from source.skip_space()
        yield from source.accept(_JSON_END)
        yield from source.accept(_CALL_END)
        return
    arguments = TaggedArguments(source, sink, name)
    while (marker := (yield from source.accept_any((_ARGUMENT, _CALL_END)))) == _ARGUMENT:
        attributes = yield from _attributes(source)
        unsaid = UNSAID if attributes.get("type") == "string" else WRITTEN_JSON
        yield from arguments.value(attributes.get("key", ""), _VALUE_END, padded=False, unsaid=unsaid)
        yield from source.skip_space()
    if marker is None:
        raise Broken(f"neither {_ARGUMENT!r} nor {_CALL_END!r} follows")
    arguments.finish()


KIMI_K3 = ReaderFormat(
    name="kimi-k3",
    spelled=frozenset({OPEN, CLOSE, SEPARATOR}),
    read=Grammar(
        calls={TOOLS: section(_CALL, _read_call, _closing("tools"))},
        thinking=(Thinking(_opening("think"), _closing("think")),),
        ignored=(_opening("response"), _closing("response"), _closing("message")),
    ).read,
    reasoning=ReasoningTags(begin=_opening("think"), end=_closing("think"), before_answer=_opening("response")),
)
