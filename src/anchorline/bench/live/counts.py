"""How many tokens a server says that it restored and prefilled, and whether that adds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """What a server reports of one call; None where it reports nothing."""

    prompt_tokens: int
    cached_tokens: int | None = None
    prefilled_tokens: int | None = None
    reply_tokens: int | None = None
    adds_up: bool | None = None
    """Whether restored + prefilled = prompt; None where the server does not report all three by themselves."""


def openai_counts(usage: Mapping[str, Any], timings: Mapping[str, Any]) -> TokenCounts | None:
    """Of a chat completion or a response, with llama-server's ``timings`` where there are any. None without usage."""
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    if prompt is None:
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    reported, timed = _count(details, "cached_tokens"), _count(timings, "cache_n")
    cached = timed if reported is None else reported
    prefilled = _count(timings, "prompt_n")
    adds_up = None
    if cached is not None:
        if prefilled is not None:
            adds_up = cached + prefilled == prompt and timed in (None, cached)
        else:
            prefilled = prompt - cached
            adds_up = None if prefilled >= 0 else False
    return TokenCounts(
        prompt_tokens=prompt,
        cached_tokens=cached,
        prefilled_tokens=prefilled,
        reply_tokens=_count(usage, "completion_tokens", "output_tokens"),
        adds_up=adds_up,
    )


def anthropic_counts(usage: Mapping[str, Any]) -> TokenCounts | None:
    """Of a message: its prompt is the sum of what was read from the cache, written to it, and neither."""
    new = _count(usage, "input_tokens")
    if new is None:
        return None
    cached = _count(usage, "cache_read_input_tokens")
    prefilled = new + (_count(usage, "cache_creation_input_tokens") or 0)
    return TokenCounts(
        prompt_tokens=(cached or 0) + prefilled,
        cached_tokens=cached,
        prefilled_tokens=None if cached is None else prefilled,
        reply_tokens=_count(usage, "output_tokens"),
    )


def _count(of: Mapping[str, Any], *names: str) -> int | None:
    """The first of ``names`` that is a number."""
    found = (of.get(name) for name in names)
    return next((int(value) for value in found if isinstance(value, int | float)), None)
