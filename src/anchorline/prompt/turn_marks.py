"""The built-in chat templates: one conversation with tools, in the turn marks of several families of models."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from types import MappingProxyType

from anchorline.prompt.template import ChatTemplate

_MARK = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")

Turn = tuple[str, str]
"""What a turn begins and ends with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMarks:
    """How a family of models was taught to tell turns apart."""

    name: str
    user: Turn
    assistant: Turn
    system: Turn | None
    """None where the first user message holds the system text."""

    @property
    def marks(self) -> tuple[str, ...]:
        """The control tokens that its turns are made of, in the order of a conversation."""
        return tuple(dict.fromkeys(_MARK.findall("".join([*(self.system or ()), *self.user, *self.assistant]))))

    def fits(self, control_texts: Collection[str]) -> bool:
        """Whether a vocabulary with these control tokens has all its marks."""
        return all(mark in control_texts for mark in self.marks)

    def template(self) -> ChatTemplate:
        """Its chat template, which shows tools."""
        turns = {"system": self.system, "user": self.user, "assistant": self.assistant}
        given = json.dumps({role: turn for role, turn in turns.items() if turn is not None})
        body = resources.files("anchorline.prompt").joinpath("builtin", "conversation.jinja").read_text("utf-8")
        return ChatTemplate(f"{{%- set turns = {given} -%}}\n{body}", name=self.name)


def _roles_named(name: str, begin: str, end: str) -> TurnMarks:
    """A family that writes the role's name into the beginning of its turn."""
    system, user, assistant = ((begin.format(role), end) for role in ("system", "user", "assistant"))
    return TurnMarks(name=name, system=system, user=user, assistant=assistant)


_INSTRUCTION, _ANSWER = ("[INST]", "[/INST]"), ("", "</s>")

CHATML = _roles_named("chatml", "<|im_start|>{}\n", "<|im_end|>\n")

_ALL = (
    _roles_named("phi4", "<|im_start|>{}<|im_sep|>", "<|im_end|>"),
    CHATML,
    TurnMarks(
        name="gemma",
        system=None,
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
    ),
    _roles_named("llama3", "<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"),
    _roles_named("phi3", "<|{}|>", "<|end|>"),
    _roles_named("granite", "<|start_of_role|>{}<|end_of_role|>", "<|end_of_text|>\n"),
    TurnMarks(
        name="mistral-v7",
        system=("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        user=_INSTRUCTION,
        assistant=_ANSWER,
    ),
    TurnMarks(name="mistral-v3", system=None, user=_INSTRUCTION, assistant=_ANSWER),
)
"""Of several that fit a vocabulary the first is what its model was taught."""

TURN_MARKS: Mapping[str, TurnMarks] = MappingProxyType(
    {family.name: family for family in (*_ALL, replace(CHATML, name="hermes"))}
)
"""By the value of --chat-template."""


def marks_of(control_texts: Collection[str]) -> TurnMarks:
    """The first family that fits a vocabulary with these control tokens; ChatML where none does."""
    return next((family for family in _ALL if family.fits(control_texts)), CHATML)
