"""One chat request on its way to a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from anchorline.output.format import ReasoningTags
from anchorline.prompt.guard import Guarded
from anchorline.prompt.messages import Message, system_count
from anchorline.prompt.rewrites import NOTHING_REWRITTEN, Rewriting
from anchorline.prompt.splice import NO_SPLICES, Splices
from anchorline.prompt.turns import GeneratedTurn
from anchorline.prompt.voice import Voice


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat request ready to be rendered, as a whole or in part, always in the same way."""

    voice: Voice
    guarded: Guarded
    turns: Mapping[int, GeneratedTurn]
    """Index of a message → the turn generated here that it is a copy of."""
    tools_json: bytes
    now: datetime
    bos: str
    eos: str
    begun: Message | None
    """Guarded message that the reply continues; its text stands behind the generation prompt."""
    asked: bytes
    """What the reply answers."""
    tenant: str
    rewriting: Rewriting = NOTHING_REWRITTEN
    splices: Splices = NO_SPLICES

    def spliced(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """As ``render``, with placeholders for the turns that were generated here."""
        return self.splices.apply(self.render(messages, add_generation_prompt=add_generation_prompt))

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Guarded text of guarded messages. Raises RequestError when the template refuses them."""
        return self.voice.template.render(
            self.voice.shape(list(messages)),
            tools=self.guarded.tools,
            add_generation_prompt=add_generation_prompt,
            bos_token=self.bos,
            eos_token=self.eos,
            kwargs=self.guarded.kwargs,
            now=self.now,
            guard=self.guarded.guard,
            json_texts=self.guarded.json_texts,
        )

    def head_key(self) -> bytes:
        """Whose the head is, and everything that its text is made of but the time."""
        system = self.guarded.messages[: system_count(self.guarded.messages)]
        made_of = [self.tenant, self.voice.name, self.guarded.guard, system, self.guarded.kwargs]
        return json.dumps(made_of).encode() + self.tools_json

    def time_key(self) -> bytes:
        """The time, where the template shows it."""
        return self.now.isoformat().encode() if self.voice.shows_time else b""


def begun_text(message: Message, reasoning: ReasoningTags | None, *, prompt_end: str) -> str:
    """The beginning of a reply, to stand behind a generation prompt that may have opened the reasoning."""
    content: str = message["content"]
    if reasoning is None:
        return content
    thoughts: str = message.get("reasoning_content", "")
    return reasoning.wrap(thoughts, content, prompt_end=prompt_end)
