"""How many tokens a server says that it restored and prefilled, and whether that adds up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anchorline.bench.client import told_as
from anchorline.bench.reported import AnthropicUsage, Details, OpenAiUsage, Timings

USAGE = "the usage that the server reports"
TIMINGS = "the timings that the server reports"


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
    """Of a chat completion or a response, with llama-server's ``timings`` where there are any. None without usage.

    Raises CallFailed for what is no count.
    """
    told, timed = told_as(OpenAiUsage, usage, what=USAGE), told_as(Timings, timings, what=TIMINGS)
    prompt = _first(told.prompt_tokens, told.input_tokens)
    if prompt is None:
        return None
    details = told.prompt_tokens_details or told.input_tokens_details or Details()
    cached = _first(details.cached_tokens, timed.cache_n)
    prefilled = timed.prompt_n
    adds_up = _adds_up(prompt, cached, timed)
    if cached is not None and prefilled is None:
        prefilled = prompt - cached
    return TokenCounts(
        prompt_tokens=prompt,
        cached_tokens=cached,
        prefilled_tokens=prefilled,
        reply_tokens=_first(told.completion_tokens, told.output_tokens),
        adds_up=adds_up,
    )


def _adds_up(prompt: int, cached: int | None, timed: Timings) -> bool | None:
    """Whether restored + prefilled = prompt. Where too little is told to say so, what cannot be is still wrong."""
    if timed.cache_n not in (None, cached) or max(cached or 0, timed.prompt_n or 0) > prompt:
        return False
    if cached is None or timed.prompt_n is None:
        return None
    return cached + timed.prompt_n == prompt


def anthropic_counts(usage: Mapping[str, Any]) -> TokenCounts | None:
    """Of a message: its prompt is the sum of what was read from the cache, written to it, and neither.

    Raises CallFailed for what is no count.
    """
    told = told_as(AnthropicUsage, usage, what=USAGE)
    if told.input_tokens is None:
        return None
    cached = told.cache_read_input_tokens
    prefilled = told.input_tokens + (told.cache_creation_input_tokens or 0)
    return TokenCounts(
        prompt_tokens=(cached or 0) + prefilled,
        cached_tokens=cached,
        prefilled_tokens=None if cached is None else prefilled,
        reply_tokens=told.output_tokens,
    )


def _first(*counts: int | None) -> int | None:
    """The first that is told."""
    return next((count for count in counts if count is not None), None)
