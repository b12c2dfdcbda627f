"""What a chat template can do, found by rendering small conversations with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any

from anchorline.errors import ConfigError, RequestError
from anchorline.prompt.bounds import TemplateLimit
from anchorline.prompt.effort import known_efforts, named, reads_effort
from anchorline.prompt.template import ChatTemplate

_TOOL_NAME = "probe_lookup"
_CALL_ID = "probe0001"
"""Nine letters and digits: some templates take no other."""
_TOOLS = (
    {
        "type": "function",
        "function": {
            "name": _TOOL_NAME,
            "description": "Looks up a value.",
            "parameters": {
                "type": "object",
                "properties": {"probe_key": {"type": "string", "description": "Which value."}},
                "required": ["probe_key"],
            },
        },
    },
)
_SYSTEM = {"role": "system", "content": "probe system"}
_USER = {"role": "user", "content": "probe user"}
_NOW = datetime(2000, 1, 1)
_VALUES = ("probe_value", "probe_other")
"""Argument of each call."""
_THOUGHT = "probe thought"
REASONING = "reasoning_content"
_REASONING_KEYS = (REASONING, "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class TemplateTokens:
    """Texts of the special tokens that templates write."""

    bos: str
    eos: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a template shows and in which form it wants it."""

    system: bool
    """Shows system messages; else their text goes in front of the first user message."""
    tools: bool
    """Shows tool schemas."""
    typed_content: bool
    """Wants content as a list of parts; a string is not shown."""
    null_call_content: bool
    """Shows tool calls only when the message's content is null."""
    text_arguments: bool
    """Wants the arguments of a tool call as JSON text instead of an object."""
    parallel_calls: bool
    """Shows several tool calls of one message."""
    call_ids: bool
    """Shows the ids of tool calls or results."""
    reasoning_key: str = REASONING
    """Field of an assistant message in which it looks for reasoning."""
    reasoning_beside_text: bool = True
    """Takes a message with tool calls that has both reasoning and text."""
    efforts: tuple[str, ...] = ()
    """The reasoning efforts that it knows; none when it reads no such option."""


def probe(template: ChatTemplate, tokens: TemplateTokens) -> Capabilities:
    """Find out what ``template`` supports; a failing render counts as not supported.

    Raises ConfigError when a render goes past its limits.
    """
    typed = "probe user" not in _render(template, tokens, [_USER]) and "probe user" in _render(
        template, tokens, [_typed(_USER)]
    )
    user, system = (_typed(_USER), _typed(_SYSTEM)) if typed else (_USER, _SYSTEM)
    base = [system, user] if "probe system" in _render(template, tokens, [system, user]) else [user]
    form = _call_form(template, tokens, base)
    turn = form.turn()
    reasoning_key = _reasoning_key(template, tokens, base, turn)
    return Capabilities(
        system=len(base) == 2,
        tools=_TOOL_NAME in _render(template, tokens, base, tools=_TOOLS),
        typed_content=typed,
        null_call_content=form.null_content,
        text_arguments=form.text_arguments,
        parallel_calls=form.parallel,
        call_ids=_CALL_ID in _render(template, tokens, [*base, *turn]),
        reasoning_key=reasoning_key,
        reasoning_beside_text=bool(
            _render(template, tokens, [*base, {**turn[0], reasoning_key: _THOUGHT, "content": "probe text"}, *turn[1:]])
        ),
        efforts=_efforts(template, tokens, [user]),
    )


def _reasoning_key(
    template: ChatTemplate,
    tokens: TemplateTokens,
    base: Sequence[Mapping[str, Any]],
    turn: Sequence[Mapping[str, Any]],
) -> str:
    """The field whose reasoning is shown with a call; the usual one where none is."""
    call, *results = turn
    for key in _REASONING_KEYS:
        if _THOUGHT in _render(template, tokens, [*base, {**call, key: _THOUGHT}, *results]):
            return key
    return REASONING


def _efforts(template: ChatTemplate, tokens: TemplateTokens, messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    if not reads_effort(template.source):
        return ()
    return known_efforts(
        template.literals,
        lambda effort: bool(_render(template, tokens, messages, kwargs=named(effort))),
    )


@dataclass(frozen=True, slots=True)
class _CallForm:
    """How a conversation with tool calls is given to a template."""

    null_content: bool = False
    text_arguments: bool = False
    parallel: bool = True

    @property
    def values(self) -> tuple[str, ...]:
        """What the arguments of the calls say."""
        return _VALUES if self.parallel else _VALUES[:1]

    def _arguments(self, value: str) -> Any:
        return f'{{"probe_key": "{value}"}}' if self.text_arguments else {"probe_key": value}

    def turn(self) -> list[dict[str, Any]]:
        ids = (_CALL_ID, "probe0002")[: len(self.values)]
        calls = [
            {"id": id, "type": "function", "function": {"name": _TOOL_NAME, "arguments": self._arguments(value)}}
            for id, value in zip(ids, self.values, strict=True)
        ]
        call = {"role": "assistant", "content": None if self.null_content else "", "tool_calls": calls}
        results = [{"role": "tool", "content": "probe result", "tool_call_id": id, "name": _TOOL_NAME} for id in ids]
        return [call, *results]


def _call_form(template: ChatTemplate, tokens: TemplateTokens, base: Sequence[Mapping[str, Any]]) -> _CallForm:
    """The first form whose render shows the calls; the plain one when none does."""
    for parallel, null_content, text_arguments in product((True, False), (False, True), (False, True)):
        form = _CallForm(null_content, text_arguments, parallel)
        text = _render(template, tokens, [*base, *form.turn()])
        if _TOOL_NAME in text and all(value in text for value in form.values):
            return form
    return _CallForm()


def _typed(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _render(
    template: ChatTemplate,
    tokens: TemplateTokens,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> str:
    try:
        return template.render(
            messages,
            tools=tools,
            add_generation_prompt=True,
            bos_token=tokens.bos,
            eos_token=tokens.eos,
            kwargs=kwargs or {},
            now=_NOW,
        )
    except TemplateLimit as error:
        raise ConfigError(f"--chat-template: {template.name} is not usable: {error}") from error
    except RequestError:
        return ""
