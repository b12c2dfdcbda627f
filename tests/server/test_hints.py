"""What clients ask to be kept outlives a flood that takes what is as large, as old and unmarked; in every protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from anchorline.config import EngineConfig
from anchorline.llama.model import Model
from tests.support.serving import serving

MARK = {"cache_control": {"type": "ephemeral"}}
LONG, FLOOD = 40, 8
"""Sentences of a message, and conversations of the flood."""

Body = dict[str, Any]


def text_of(about: str) -> str:
    return " ".join(f"Sentence {number} says something of {about}." for number in range(LONG))


def messages(about: str, hints: Body) -> tuple[str, Body]:
    part = {"type": "text", "text": text_of(about), **hints}
    return "/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}


def chat(about: str, hints: Body) -> tuple[str, Body]:
    part = {"type": "text", "text": text_of(about), **hints}
    return "/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}


def chat_with_fields(about: str, hints: Body) -> tuple[str, Body]:
    asked = [{"role": "user", "content": text_of(about)}]
    return "/v1/chat/completions", {"max_tokens": 1, "messages": asked, **hints}


def responses(about: str, hints: Body) -> tuple[str, Body]:
    return "/v1/responses", {"max_output_tokens": 1, "input": text_of(about), "store": False, **hints}


def restored(url: str, call: tuple[str, Body]) -> int:
    """Tokens that a call got back."""
    path, body = call
    response = httpx.post(url + path, json={**body, "temperature": 0}, timeout=120)
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(usage.get("cache_read_input_tokens", details.get("cached_tokens")))


@pytest.mark.parametrize(
    ("make", "hints"),
    [
        (messages, MARK),
        (chat, MARK),
        (chat_with_fields, {"prompt_cache_retention": "24h"}),
        (chat_with_fields, {"prompt_cache_retention": "24h", "prompt_cache_key": "mine"}),
        (responses, {"prompt_cache_retention": "24h", "prompt_cache_key": "mine"}),
    ],
)
def test_what_is_to_be_kept_outlives_a_flood(
    test_llama_model: Model, make: Callable[[str, Body], tuple[str, Body]], hints: Body
) -> None:
    config = EngineConfig(cache_ram_bytes=1 << 20, resident_idle=0)
    with serving(test_llama_model, config) as live:
        wanted, other = make("books", hints), make("shoes", {})
        for call in (wanted, other):
            assert restored(live.url, call) < 50
        for number in range(FLOOD):
            restored(live.url, make(f"thing number {number}", {}))
        assert live.engine.stats().cache.evictions > 0
        assert restored(live.url, other) < 50
        assert restored(live.url, wanted) > 250
