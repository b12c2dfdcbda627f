"""A reply format whose markers are single characters, so that its parser needs no look-ahead.

    (thoughts)answer[name|{"a": 1}][other|{}]

A prompt that ends with ``(`` has opened the reasoning. Calls to unknown tools are text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anchorline.output.events import (
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    TextDelta,
    TokenText,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from anchorline.output.format import CallMode, CallTag, ReasoningTags, ReplyContext
from anchorline.output.parser import ReplyParser


@dataclass(slots=True)
class _State:
    where: str = "text"
    """``text``, ``reasoning``, ``name`` or ``arguments``."""
    name: str = ""
    calls: int = 0
    tokens: list[TokenText] = field(default_factory=list)
    """Those that no event has taken along yet."""


class _TinyParser:
    def __init__(self, context: ReplyContext) -> None:
        self._context = context
        self._states: dict[int, _State] = {}

    def feed(self, event: ReplyEvent) -> list[ReplyEvent]:
        if isinstance(event, ReplyFinished | ReplyFailed):
            return [event]
        opened = "reasoning" if self._context.prompt_end.endswith("(") else "text"
        state = self._states.setdefault(event.choice, _State(opened))
        if isinstance(event, ChoiceFinished):
            rest = [TextDelta(event.choice, "", tuple(state.tokens))] if state.tokens else []
            return [*rest, ChoiceFinished(event.choice, event.reason, event.stop_string, state.calls)]
        assert isinstance(event, TextDelta)
        state.tokens.extend(event.tokens)
        out: list[ReplyEvent] = []
        for character in event.text:
            out += self._take(event.choice, state, character)
        return out

    def _take(self, choice: int, state: _State, character: str) -> list[ReplyEvent]:
        match state.where, character:
            case ("text", "("):
                state.where = "reasoning"
            case ("reasoning", ")") | ("name", "]"):
                state.where = "text"
            case ("text", "[") if self._context.calls is not CallMode.NONE:
                state.where, state.name = "name", ""
            case ("name", "|"):
                return self._start(choice, state)
            case ("name", _):
                state.name += character
            case ("arguments", "]"):
                state.where = "text"
                state.calls += 1
                return [ToolCallFinished(choice, state.calls - 1)]
            case _:
                return [self._delta(choice, state, character)]
        return []

    def _start(self, choice: int, state: _State) -> list[ReplyEvent]:
        if state.name not in self._context.tools:
            state.where = "text"
            return [TextDelta(choice, f"[{state.name}|", self._tokens(state))]
        state.where = "arguments"
        return [ToolCallStarted(choice, state.calls, self._context.new_call_id(), state.name)]

    def _delta(self, choice: int, state: _State, text: str) -> ReplyEvent:
        tokens = self._tokens(state)
        if state.where == "reasoning":
            return ReasoningDelta(choice, text, tokens)
        if state.where == "arguments":
            return ToolCallDelta(choice, state.calls, text, tokens)
        return TextDelta(choice, text, tokens)

    def _tokens(self, state: _State) -> tuple[TokenText, ...]:
        tokens, state.tokens = tuple(state.tokens), []
        return tokens


class TinyFormat:
    """Implements ``ReplyFormat``."""

    name = "tiny"
    spelled = frozenset({"<|im_start|>", "<|absent|>"})
    reasoning: ReasoningTags | None = ReasoningTags(begin="(", end=")")

    def parser(self, context: ReplyContext) -> ReplyParser:
        return _TinyParser(context)

    def call_tag(self, tool: str) -> CallTag | None:
        return CallTag(begin=f"[{tool}|", end="]", trigger="[")
