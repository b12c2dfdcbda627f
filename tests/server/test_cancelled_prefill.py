"""A client that leaves while its prompt is prefilled and comes back: no token is prefilled twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.client import HTTPConnection

import httpx
import pytest

from anchorline.config import EngineConfig, ModelConfig
from anchorline.engine.stats import EngineStats
from anchorline.llama.model import load_model
from tests.support.serving import LiveServer, serving

WORDS = 15_800
"""With the message around them a prompt of 30,000 tokens and a few."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("arch", "stream"), [("llama", False), ("qwen35", True)])
def test_three_disconnects_from_half_of_a_long_prefill_on_cost_next_to_nothing(arch: str, stream: bool) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}", test_context=65_536))
    config = EngineConfig(parallel=2, resident_idle=1, cache_ram_bytes=256 << 20)
    text = " ".join(f"{word % 7919:x} {word}" for word in range(WORDS))
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "stream": stream}
    try:
        with serving(model, config, context_tokens=65_536) as live:
            total = httpx.post(f"{live.url}/apply-template", json=body | {"return_tokens": True}, timeout=60)
            prompt_tokens = len(total.json()["tokens"])
            assert prompt_tokens >= 30_000
            for part in (2, 3, 3):
                decoded = live.engine.stats().decoded_tokens
                leave(live, body, at=decoded + (prompt_tokens - decoded) // part)
            assert live.engine.stats().decoded_tokens < prompt_tokens
            last = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=300)
            assert last.status_code == 200
            stats = wait_for(live, lambda stats: stats.running == 0)
            assert stats.decoded_tokens <= 1.05 * prompt_tokens
    finally:
        model.close()


def leave(live: LiveServer, body: dict[str, object], *, at: int) -> None:
    """Send the request, and close the connection once the engine has decoded ``at`` tokens."""
    connection = HTTPConnection(live.url.removeprefix("http://"))
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    wait_for(live, lambda stats: stats.decoded_tokens >= at)
    connection.close()
    wait_for(live, lambda stats: stats.running == stats.waiting == 0)


def wait_for(live: LiveServer, condition: Callable[[EngineStats], bool]) -> EngineStats:
    pause = threading.Event()
    for _ in range(60_000):
        stats = live.engine.stats()
        if condition(stats):
            return stats
        pause.wait(0.005)
    raise AssertionError("the engine does not get there")
