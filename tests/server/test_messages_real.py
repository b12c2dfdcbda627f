"""Messages over the real engine, template and tokenizer: recorded Claude Code traffic, and what is restored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from anchorline.bench.trace import read_trace
from anchorline.config import EngineConfig
from anchorline.llama.model import Model
from tests.bench.test_trace import RECORDED, needs_recorded
from tests.support.serving import serving

MARK = {"cache_control": {"type": "ephemeral"}}
CONTEXT_TOKENS = 24_576


@pytest.fixture(scope="module")
def url(test_llama_model: Model) -> Iterator[str]:
    with serving(test_llama_model, EngineConfig(cache_ram_bytes=256 << 20), context_tokens=CONTEXT_TOKENS) as live:
        yield live.url


def post(url: str, body: dict[str, Any], path: str = "/v1/messages") -> dict[str, Any]:
    response = httpx.post(url + path, json=body, timeout=250)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def stream(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = httpx.post(f"{url}/v1/messages", json=body | {"stream": True}, timeout=250)
    assert response.status_code == 200, response.text
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n") if line.startswith("data: ")]


@needs_recorded
def test_recorded_calls_prefill_only_what_they_add(url: str) -> None:
    """Marks that move, strings for blocks and results in another order leave each prompt a prefix of the next."""
    bodies = [request.body for request in read_trace(RECORDED / "claude-code.jsonl").requests]
    assert len(bodies) == 7
    before = 0
    for body in bodies:
        counted = post(url, body, "/v1/messages/count_tokens")["input_tokens"]
        start, *_, delta, _ = stream(url, body | {"max_tokens": 2, "temperature": 0})
        usage = delta["usage"]
        assert usage["cache_read_input_tokens"] == before
        assert usage["input_tokens"] + usage["cache_creation_input_tokens"] == counted - before
        assert 1 <= usage["input_tokens"] < 20  # the generation prompt, behind the mark
        assert start["message"]["usage"] == usage | {"output_tokens": 0}
        before = counted


def test_a_reply_that_comes_back_is_restored(url: str) -> None:
    options = {"max_tokens": 8, "temperature": 0, "seed": 1}
    asked = [{"role": "user", "content": "Where is Moby Dick? " * 20}]
    first = post(url, {"messages": asked, "system": "You look after a library.", **options})
    text = first["content"][0]["text"]
    longer = [
        {"role": "user", "content": [{"type": "text", "text": asked[0]["content"], **MARK}]},
        {"role": "assistant", "content": [{"type": "text", "text": text}]},
        {"role": "user", "content": [{"type": "text", "text": "And Emma?", **MARK}]},
    ]
    header = {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}
    system = [header, {"type": "text", "text": "You look after a library.", **MARK}]
    second = post(url, {"messages": longer, "system": system, **options})
    prompt_tokens = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]
    assert second["usage"]["cache_read_input_tokens"] >= prompt_tokens


def test_a_prompt_can_be_kept_without_a_reply(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "Who wrote Emma? " * 50}], "temperature": 0}
    counted = post(url, body, "/v1/messages/count_tokens")["input_tokens"]
    assert post(url, body | {"max_tokens": 0})["content"] == []
    assert post(url, body | {"max_tokens": 1})["usage"]["cache_read_input_tokens"] == counted - 1


def test_text_that_no_encoding_has_is_refused(url: str) -> None:
    raw = b'{"max_tokens": 1, "messages": [{"role": "user", "content": "\\ud800x"}]}'
    assert httpx.post(f"{url}/v1/messages", content=raw).status_code == 400
