"""What a reply says, however it was written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from anchorline.engine.request import FinishReason
from anchorline.output.events import (
    ChoiceEvent,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from anchorline.output.format import CallMode, ReplyContext, ReplyFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidCall:
    """One tool call; ``arguments`` is JSON text as it was written, ``id`` the one that clients know it by."""

    id: str
    name: str
    arguments: str
    written_id: str | None = None
    """The id that stands in the reply itself, if one does."""

    def means(self, name: str, arguments: str) -> bool:
        """Whether a call of ``name`` with ``arguments`` asks for the same."""
        return self.name == name and same_json(self.arguments, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One choice of a reply, taken apart."""

    reasoning: str
    content: str
    calls: tuple[SaidCall, ...]

    def means(self, other: Said) -> bool:
        """Whether both say the same; white space around texts and the spelling of JSON don't count.

        Ids count where both write them, since results name them.
        """
        return (
            self.reasoning.strip() == other.reasoning.strip()
            and self.content.strip() == other.content.strip()
            and len(self.calls) == len(other.calls)
            and all(
                call.means(own.name, own.arguments)
                and (call.written_id == own.written_id or None in (call.written_id, own.written_id))
                for call, own in zip(self.calls, other.calls, strict=True)
            )
        )


@dataclass(slots=True)
class SaidBuilder:
    """Puts the structured events of one choice together."""

    _reasoning: list[str] = field(default_factory=list)
    _content: list[str] = field(default_factory=list)
    _open: ToolCallStarted | None = None
    _arguments: list[str] = field(default_factory=list)
    _calls: list[SaidCall] = field(default_factory=list)

    def take(self, event: ChoiceEvent) -> None:
        """Events come in order; a call that does not finish is left out."""
        match event:
            case ReasoningDelta(text=text):
                self._reasoning.append(text)
            case TextDelta(text=text):
                self._content.append(text)
            case ToolCallStarted():
                self._open, self._arguments = event, []
            case ToolCallDelta(arguments=arguments):
                self._arguments.append(arguments)
            case ToolCallFinished() if self._open is not None:
                call = SaidCall(id=self._open.id, name=self._open.name, arguments="".join(self._arguments))
                self._calls.append(call)
                self._open = None
            case ChoiceFinished(written_ids=ids) if ids:
                self._calls = [replace(call, written_id=id) for call, id in zip(self._calls, ids, strict=True)]
            case _:
                pass

    def said(self) -> Said:
        return Said(reasoning="".join(self._reasoning), content="".join(self._content), calls=tuple(self._calls))


def read(text: str, format: ReplyFormat, *, prompt_end: str, tools: Mapping[str, Mapping[str, Any]]) -> Said:
    """What ``text`` says as a whole reply to a prompt that ends with ``prompt_end``."""
    context = ReplyContext(prompt_end=prompt_end[-200:], tools=tools, calls=CallMode.AUTO, new_call_id=lambda: "")
    parser, builder = format.parser(context), SaidBuilder()
    given: Iterable[ChoiceEvent] = (TextDelta(0, text, ()), ChoiceFinished(0, FinishReason.STOP, None))
    for event in given:
        for found in parser.feed(event):
            builder.take(found)  # type: ignore[arg-type]  # a choice's events yield only such
    return builder.said()


def same_json(one: str, other: str) -> bool:
    """Whether two JSON texts have one value, whatever their spacing, key order and way of writing numbers."""
    if one == other:
        return True
    try:
        return _canonical(one) == _canonical(other)
    except (ValueError, RecursionError):
        return one.strip() == other.strip()


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text or "{}", parse_float=_number), sort_keys=True)


def _number(text: str) -> int | float | str:
    """1.0 is 1, as JavaScript writes it back; what a float cannot hold stays text."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
