"""What clients say about caching: marks on parts of a prompt, a name for the conversation, how long to keep it.

    tools, system      user        assistant, user
    |      head      | message |  …  message |  generation prompt
             ^ mark      ^ mark         ^ 24h
                     ^ wish    ^ wish        ^ wish

Cuts lie at message ends, so each becomes a wish at the end of the message that carries it; marks on tools and on
the leading system messages become one at the head. None changes a prompt, and without any of them the cache works too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anchorline.api.decode import json_type
from anchorline.cache.prompt import CutKind, PinWish, Prompt
from anchorline.errors import RequestError
from anchorline.limits import Limits

TTL_SECONDS = {"5m": 300.0, "1h": 3600.0}
MOST_MARKS = 4
"""Anthropic's own limit."""

_RETENTION_SECONDS = {"in_memory": None, "in-memory": None, "24h": 86_400.0}
"""OpenAI's words, the second an older spelling of the first; None: as long as there is room."""
_HEAD = 0
"""Messages before the end of tools and system prompt, however many system messages there are."""

Given = tuple[str, Any, int]
"""Where a mark stands, what it is, and how many messages end before the cut that it asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMark:
    """A wish for the first ``messages`` messages of a prompt, or for its head where they end before that does."""

    messages: int
    ttl_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheHints:
    """All that one request says about caching, checked."""

    marks: tuple[CacheMark, ...] = ()
    conversation: str | None = None

    def complete(self, prompt: Prompt) -> Prompt:
        """``prompt`` with these hints.

        A mark before every known cut is left out; of those that fall on one cut the longest holds.
        """
        wishes: dict[int, float] = {}
        for mark in self.marks:
            position = _position(prompt, mark.messages)
            if position:
                wishes[position] = max(mark.ttl_seconds, wishes.get(position, 0.0))
        return replace(
            prompt,
            conversation=self.conversation,
            pin_wishes=tuple(PinWish(position=at, ttl_seconds=wishes[at]) for at in sorted(wishes)),
        )


NO_HINTS = CacheHints()


def messages_marks(
    *,
    request: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]],
    system: str | list[Any] | None,
    messages: Sequence[Mapping[str, Any]],
    ends: Sequence[int],
) -> tuple[CacheMark, ...]:
    """Marks of a Messages request; ``ends`` is how many chat messages there are up to the end of each of its own.

    ``request`` is the mark on the request as a whole, which stands for one on the last block. Raises RequestError
    naming the mark that is malformed, one too many, or out of order.
    """
    given = [(f"tools[{index}].cache_control", tool.get("cache_control"), _HEAD) for index, tool in enumerate(tools)]
    given += _on_parts(system, "system", _HEAD)
    for index, (message, end) in enumerate(zip(messages, ends, strict=True)):
        given += _on_parts(message.get("content"), f"messages[{index}].content", end)
    marks = _checked(given)
    if request is None or any(mark.messages == ends[-1] for mark in marks):
        return marks
    return _checked([*given, ("cache_control", request, ends[-1])])


def chat_hints(
    *,
    tools: Sequence[Mapping[str, Any]],
    messages: Sequence[Mapping[str, Any]],
    key: str | None,
    retention: str | None,
    limits: Limits,
) -> CacheHints:
    """Hints of a chat completion; marks stand where OpenRouter's and LiteLLM's clients put them.

    ``key`` is ``prompt_cache_key``, ``retention`` is ``prompt_cache_retention``. Raises RequestError naming the field.
    """
    if key is not None and len(key) > limits.cache_key_characters:
        raise RequestError(
            f"prompt_cache_key has {len(key)} characters; at most {limits.cache_key_characters} are allowed "
            f"(--max-cache-key)",
            field="prompt_cache_key",
        )
    if retention is not None and retention not in _RETENTION_SECONDS:
        raise RequestError("prompt_cache_retention must be in_memory or 24h", field="prompt_cache_retention")
    marks = _checked(_in_chat(tools, messages))
    kept_seconds = None if retention is None else _RETENTION_SECONDS[retention]
    if kept_seconds is not None:
        marks = (*marks, CacheMark(messages=len(messages), ttl_seconds=kept_seconds))
    return CacheHints(marks=marks, conversation=key or None)


def _in_chat(tools: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]) -> Iterator[Given]:
    for index, tool in enumerate(tools):
        yield f"tools[{index}].cache_control", tool.get("cache_control"), _HEAD
        yield f"tools[{index}].function.cache_control", tool["function"].get("cache_control"), _HEAD
    for end, message in enumerate(messages, 1):
        yield from _on_parts(message.get("content"), f"messages[{end - 1}].content", end)
        yield f"messages[{end - 1}].cache_control", message.get("cache_control"), end


def _on_parts(content: Any, where: str, messages: int) -> Iterator[Given]:
    """The marks of a list of parts; those inside a tool's result come before the one on the whole of it."""
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict):
            if part.get("type") == "tool_result":
                yield from _on_parts(part.get("content"), f"{where}[{index}].content", messages)
            yield f"{where}[{index}].cache_control", part.get("cache_control"), messages


def _checked(given: Iterator[Given] | Sequence[Given]) -> tuple[CacheMark, ...]:
    """What was given, in the order in which a prompt holds it."""
    marks: list[CacheMark] = []
    for where, mark, messages in given:
        if mark is None:
            continue
        if len(marks) == MOST_MARKS:
            raise RequestError(f"{where}: at most {MOST_MARKS} blocks may have cache_control", field=where)
        ttl_seconds = _ttl_seconds(mark, where)
        if marks and ttl_seconds > marks[-1].ttl_seconds:
            raise RequestError(
                f"{where}.ttl: a longer ttl must not come after a shorter one; tools come first, then system, "
                f"then messages",
                field=f"{where}.ttl",
            )
        marks.append(CacheMark(messages=messages, ttl_seconds=ttl_seconds))
    return tuple(marks)


def _ttl_seconds(mark: Any, where: str) -> float:
    if not isinstance(mark, dict):
        raise RequestError(f"{where} must be an object, not {json_type(mark)}", field=where, code="invalid_type")
    if mark.get("type") != "ephemeral":
        raise RequestError(f'{where}.type must be "ephemeral"', field=f"{where}.type")
    ttl = mark.get("ttl")
    if ttl is None:
        return TTL_SECONDS["5m"]
    if not isinstance(ttl, str) or ttl not in TTL_SECONDS:
        raise RequestError(f"{where}.ttl must be {' or '.join(TTL_SECONDS)}", field=f"{where}.ttl")
    return TTL_SECONDS[ttl]


def _position(prompt: Prompt, messages: int) -> int:
    """Token position of the last known cut at or before the end of the first ``messages`` messages; 0 for none."""
    head = next((cut for cut in prompt.cuts if cut.kind is CutKind.HEAD), None)
    if head is not None and messages <= (0 if head.message is None else head.message + 1):
        return head.position
    bounds = prompt.message_bounds
    return bounds[min(messages, len(bounds) - 1)] if bounds else 0
