"""Texts of agents that nobody has: system prompts, tools, questions and results, as long as they are asked to be."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from anchorline.bench import agent

WORDS = (
    agent.SYSTEM
    + " harbour ledger copper willow lantern orchard granite meadow ribbon saddle timber velvet anchor barley cinder "
    "dapple ember fathom gather hollow island juniper kettle linen marble nettle oyster pebble quarry russet sorrel"
).split()
"""Ordinary words, so that tokens per word are ordinary too."""
TOOL_SHARE = 0.75
"""Of a head: what its tools take, as they do in agents with many of them."""
TOOL_FRAME_TOKENS = 80
"""What the JSON of a tool takes besides its descriptions, about."""
PARAMETERS = 3
END_TOKENS = 20
"""Of a system prompt: what sub-agents do not share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every conversation of one agent begins with."""

    system: str
    tools: tuple[dict[str, Any], ...]

    def body(self, *messages: agent.Message, max_tokens: int) -> dict[str, Any]:
        """A chat request of this agent."""
        body = agent.chat_body(list(messages), max_tokens=max_tokens, tools=False, system=self.system)
        return {**body, "tools": list(self.tools)} if self.tools else body

    def with_other_tools(self, author: Author) -> Head:
        """The same but for the description of the first tool: whatever follows it is not what it was."""
        first = self.tools[0]
        function = {**first["function"], "description": author.text(TOOL_FRAME_TOKENS)}
        return replace(self, tools=({**first, "function": function}, *self.tools[1:]))

    def with_other_end(self, author: Author) -> Head:
        """The same with more behind the system prompt, as between sub-agents with different tasks."""
        return replace(self, system=f"{self.system} {author.text(END_TOKENS)}")


class Author:
    """Writes texts of about so many tokens; equal draws give equal texts.

    ``words_per_token`` is the model's, for these words.
    """

    def __init__(self, draw: random.Random, *, words_per_token: float) -> None:
        self._draw = draw
        self._words_per_token = words_per_token

    def text(self, tokens: int) -> str:
        return " ".join(self._draw.choices(WORDS, k=max(1, round(tokens * self._words_per_token))))

    def head(self, tokens: int, *, tools: int) -> Head:
        """System prompt and ``tools`` tools of about ``tokens`` together."""
        each = int(tokens * TOOL_SHARE / tools)
        made = tuple(self.tool(each) for _ in range(tools))
        return Head(system=self.text(int(tokens * (1 - TOOL_SHARE))), tools=made)

    def tool(self, tokens: int) -> dict[str, Any]:
        part = max(2, (tokens - TOOL_FRAME_TOKENS) // (PARAMETERS + 1))
        names = [f"{self._name()}_{number}" for number in range(PARAMETERS)]
        properties = {name: {"type": "string", "description": self.text(part)} for name in names}
        parameters = {"type": "object", "properties": properties, "required": names[:1]}
        function = {"name": f"{self._name()}_{self._name()}", "description": self.text(part), "parameters": parameters}
        return {"type": "function", "function": function}

    def history(self, tokens: int, *, message_tokens: int = 200) -> list[agent.Message]:
        """Questions and answers in turn, about ``tokens`` of them."""
        messages: list[agent.Message] = []
        for _ in range(max(0, tokens) // (2 * message_tokens)):
            messages += [agent.user(self.text(message_tokens)), agent.assistant(self.text(message_tokens))]
        return messages

    def tool_round(self, head: Head, number: int, *, tokens: int) -> list[agent.Message]:
        """A call of a tool of ``head`` and its result, about ``tokens`` together."""
        function = head.tools[number % len(head.tools)]["function"]
        (argument,) = function["parameters"]["required"]
        call = agent.tool_call(f"call_{number}", function["name"], f'{{"{argument}": "{self._name()}"}}')
        return [call, agent.tool_result(f"call_{number}", self.text(max(1, tokens // 2)))]

    def _name(self) -> str:
        return self._draw.choice([word for word in WORDS if word.isalpha() and word.islower() and len(word) > 4])
