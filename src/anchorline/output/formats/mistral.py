"""Mistral: ``[TOOL_CALLS]`` before a JSON list of calls, or since 2025 before each ``NAME[ARGS]{…}``."""

from __future__ import annotations

from collections.abc import Callable

from anchorline.output.format import CallTag, ReasoningTags
from anchorline.output.formats.grammar import THINK, Grammar, Thinking
from anchorline.output.formats.json_calls import json_arguments, json_calls
from anchorline.output.formats.json_text import quote
from anchorline.output.formats.machine import ReaderFormat
from anchorline.output.formats.sink import Sink
from anchorline.output.formats.source import Source, Steps
from anchorline.output.markers import Markers

OPEN, ARGUMENTS, IDENTITY = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_THINKING = Thinking("[THINK]", "[/THINK]")
_NAME_END = Markers((ARGUMENTS, IDENTITY, "{"))
_IDENTITY_END = Markers((ARGUMENTS, "{"))


def _read_calls(source: Source, sink: Sink) -> Steps[None]:
    yield from source.skip_space()
    if (yield from source.peek()) in ("[", "{"):
        yield from json_calls(source, sink)
        return
    name, marker = yield from source.up_to(_NAME_END)
    if marker == IDENTITY:
        _, marker = yield from source.up_to(_IDENTITY_END)
    if marker == "{":  # the arguments begin with it
        source.position -= 1
    yield from json_arguments(source, sink, name.strip())


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
