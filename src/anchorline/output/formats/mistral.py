"""Mistral: ``[TOOL_CALLS]`` before a JSON list of calls, or since 2025 before each ``NAME[ARGS]{…}``."""

from __future__ import annotations

import re
from collections.abc import Callable

from anchorline.output.format import CallTag, ReasoningTags
from anchorline.output.formats.grammar import THINK, Grammar, Thinking
from anchorline.output.formats.json_calls import json_arguments, json_calls
from anchorline.output.formats.json_text import quote
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Source, Steps

OPEN, ARGUMENTS, IDENTITY = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_THINKING = Thinking("[THINK]", "[/THINK]")
_NAME = re.compile(r"[^\s\[{]*")


def _read_calls(source: Source, sink: Sink) -> Steps[None]:
    yield from source.skip_space()
    if (yield from source.peek()) in ("[", "{"):
        yield from json_calls(source, sink)
        return
    name = yield from source.word(_NAME)
    yield from source.skip_space()
    identity = ""
    if (yield from source.accept(IDENTITY)):
        identity = yield from source.word(_NAME)
    yield from source.accept(ARGUMENTS)
    yield from json_arguments(source, sink, name)
    if identity:
        sink.last_call_is(identity)


def _tag_list(tool: str) -> CallTag:
    return CallTag(begin=f'{OPEN}[{{"name": {quote(tool)}, "arguments": ', end="}]", trigger=OPEN)


def _tag_named(tool: str) -> CallTag:
    return CallTag(begin=f"{OPEN}{tool}{ARGUMENTS}", end="", trigger=OPEN)


def _generation(name: str, tag: Callable[[str], CallTag]) -> ReaderFormat:
    return ReaderFormat(
        name=name,
        spelled=frozenset({OPEN, ARGUMENTS, IDENTITY, _THINKING.open, _THINKING.close}),
        read=Grammar(calls={OPEN: _read_calls}, thinking=(_THINKING, THINK), calls_in_thinking=True).read,
        tag=tag,
        reasoning=ReasoningTags(begin=_THINKING.open, end=_THINKING.close),
    )


MISTRAL = _generation("mistral", _tag_list)
MISTRAL_NAMED = _generation("mistral-named", _tag_named)
