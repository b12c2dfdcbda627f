"""Which rule answers a call, and the tokens of its reply."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from anchorline.llama.interface import TokenArray
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.messages import Message, normalise_messages
from anchorline.script.rules import Match, Reply, Rule, ToolCall

log = logging.getLogger("anchorline.script")

DEFAULT_REPLY = Reply(content="There is nothing in the script for this.")
"""Said where no rule answers."""


@dataclass(frozen=True, slots=True)
class FixedReply:
    """Implements ``engine.request.TokenForcer``: these ids, of which the last one ends the reply."""

    ids: tuple[int, ...]

    def force(self, choice: int, generated: TokenArray) -> int | None:
        return self.ids[generated.size]


class Script:
    """The rules and which of them are spent. Thread-safe."""

    def __init__(
        self, rules: Sequence[Rule], prompts: PromptBuilder, *, end: int, end_of_generation: Collection[int]
    ) -> None:
        """``end`` is the token that ends a reply which none of ``end_of_generation`` ends."""
        assert end in end_of_generation
        self._rules = tuple(rules)
        self._prompts = prompts
        self._end = end
        self._end_of_generation = frozenset(end_of_generation)
        self._spent: set[int] = set()
        self._lock = Lock()

    def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None = None,
        effort: str | None = None,
    ) -> FixedReply:
        """The reply to a chat request, whose messages and tools are as the client sent them.

        Spends the rule that it takes. Raises RequestError where the messages or the template do.
        """
        offered = {tool["function"]["name"]: tool for tool in tools or ()}
        reply, calls = self._take(normalise_messages(messages), offered)
        if reply.raw is not None:
            ids = self._prompts.tokenizer.tokenize(reply.raw).tokens
        else:
            message = _message(reply, calls)
            ids = self._prompts.turn(message, tools=tools, template_kwargs=template_kwargs, effort=effort)
        return FixedReply(self._closed(ids))

    def _take(self, messages: Sequence[Message], offered: Mapping[str, object]) -> tuple[Reply, list[ToolCall]]:
        with self._lock:
            for index, rule in enumerate(self._rules):
                if index in self._spent or not matches(rule.match, messages, tools=bool(offered)):
                    continue
                calls = rule.reply.chosen_calls(offered)
                if calls is not None:
                    if not rule.repeat:
                        self._spent.add(index)
                    return rule.reply, calls
        log.warning("no rule answers a call of %d messages with the tools: %s", len(messages), ", ".join(offered))
        return DEFAULT_REPLY, []

    def _closed(self, ids: TokenArray) -> tuple[int, ...]:
        """``ids`` up to the first that ends a reply."""
        closed: list[int] = []
        for token in ids.tolist():
            closed.append(token)
            if token in self._end_of_generation:
                return tuple(closed)
        return (*closed, self._end)


def matches(match: Match, messages: Sequence[Message], *, tools: bool) -> bool:
    """Whether a call with these (normalised) messages is one that ``match`` describes."""
    start = max((index + 1 for index, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    news = [message for message in messages[start:] if message["role"] != "system"]
    system = [message for message in messages if message["role"] == "system"]
    results = any(message["role"] == "tool" for message in news)
    return (
        match.tools in (None, tools)
        and match.results in (None, results)
        and (match.contains is None or _found(match.contains, news))
        and (match.system is None or _found(match.system, system))
    )


def _found(text: str, messages: Sequence[Message]) -> bool:
    return any(text in message["content"] for message in messages)


def _message(reply: Reply, calls: Sequence[ToolCall]) -> Message:
    """The assistant message in OpenAI's form."""
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call{index:05d}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for index, call in enumerate(calls)
        ]
    return message
