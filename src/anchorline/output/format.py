"""How one family of models writes reasoning and tool calls: the face of every reply format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from anchorline.output.parser import ReplyParser


class CallMode(StrEnum):
    """Where tool calls are looked for."""

    NONE = "none"
    """Nowhere: what looks like a call is text (no tools, or ``tool_choice: none``)."""
    AUTO = "auto"
    """Wherever the format writes them."""
    JSON = "json"
    """The answer is bare JSON, as a forced call is: ``{"name": …, "arguments": {…}}`` or a list of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyContext:
    """What a parser may know of the call whose reply it reads."""

    prompt_end: str
    """The last 200 characters of the prompt: a template may have opened a reasoning block in it."""
    tools: Mapping[str, Mapping[str, Any]]
    """Name → JSON schema of the parameters ({} where none was given)."""
    calls: CallMode
    new_call_id: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTag:
    """What a format writes around the JSON arguments of a call to one tool."""

    begin: str
    end: str
    trigger: str
    """The beginning of ``begin`` by which any call is recognised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningTags:
    """What a format writes around a block of reasoning; control tokens as their texts."""

    begin: str
    end: str
    before_end: str = ""
    """White space between the reasoning and its closing tag."""
    after_end: str = ""
    """What stands between the closing tag and an answer."""
    before_answer: str = ""
    """What every answer begins with."""

    def wrap(self, reasoning: str, answer: str, *, prompt_end: str) -> str:
        """A reply of both, to go on from a prompt that ends like this and may have opened either."""
        if self.before_answer and prompt_end.endswith(self.before_answer):
            return answer
        opened = self.opened_by(prompt_end)
        if not opened and not reasoning:
            return f"{self.before_answer}{answer}"
        begin = "" if opened else self.begin
        return f"{begin}{reasoning}{self.before_end}{self.end}{self.after_end}{self.before_answer}{answer}"

    def opened_by(self, prompt_end: str) -> bool:
        """Whether a prompt that ends like this has opened a block."""
        return prompt_end.rstrip().endswith(self.begin.rstrip())

    def left_open(self, text: str) -> bool:
        """Whether reasoning begins in ``text`` and does not end in it."""
        return text.rfind(self.begin.rstrip()) > text.rfind(self.end)


THINK_TAGS = ReasoningTags(begin="<think>\n", end="</think>", before_end="\n", after_end="\n\n")
"""What most formats write."""


class ReplyFormat(Protocol):
    """One format."""

    @property
    def name(self) -> str:
        """The value of --tool-format that chooses it."""
        ...

    @property
    def spelled(self) -> frozenset[str]:
        """Texts of the control tokens that have to be spelled out for the parser; all others are dropped."""
        ...

    @property
    def reasoning(self) -> ReasoningTags | None:
        """None for formats without reasoning."""
        ...

    def parser(self, context: ReplyContext) -> ReplyParser:
        """A parser for one call's reply, for any number of choices."""
        ...

    def call_tag(self, tool: str) -> CallTag | None:
        """For constraining a call's arguments; None where they are not one piece of JSON."""
        ...
