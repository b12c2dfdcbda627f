"""The HTTP layer over the real engine, template and tokenizer, on a small random-weight model."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from anchorline.config import EngineConfig, ServerConfig
from anchorline.engine.engine import Engine
from anchorline.limits import Limits
from anchorline.llama.model import Model
from tests.support.serving import LiveServer, serving

CONTEXT_TOKENS = 2048
ENGINE = EngineConfig(parallel=2, queue=1, resident_idle=1, cache_ram_bytes=64 << 20)
MESSAGES: Any = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def live(test_llama_model: Model) -> Iterator[LiveServer]:
    server = ServerConfig(port=0, limits=Limits(choices=2))
    with serving(test_llama_model, ENGINE, context_tokens=CONTEXT_TOKENS, server=server) as live:
        yield live


@pytest.fixture(scope="module")
def url(live: LiveServer) -> str:
    return live.url


@pytest.fixture(scope="module")
def engine(live: LiveServer) -> Engine:
    return live.engine


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def post(url: str, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 8} | fields
    return httpx.post(url + path, json=body, timeout=60).json()


def test_streamed_and_whole_replies_agree(client: OpenAI) -> None:
    options: Any = {"model": "m", "messages": MESSAGES, "temperature": 0, "max_tokens": 8}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_second_turn_restores_the_first(url: str) -> None:
    first = post(url, messages=[{"role": "user", "content": "a first turn " * 100}], return_tokens=True)
    reply = first["choices"][0]["message"]["content"]
    longer = [
        {"role": "user", "content": "a first turn " * 100},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "more"},
    ]
    ids = {
        name: httpx.post(f"{url}/apply-template", json={"messages": turns, "return_tokens": True}).json()["tokens"]
        for name, turns in (("first", longer[:1]), ("second", longer))
    }
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*ids.values(), strict=False))))
    second = post(url, messages=longer)
    timings = second["timings"]
    assert second["usage"]["prompt_tokens"] == len(ids["second"]) == timings["cache_n"] + timings["prompt_n"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"] >= common > 100
    assert timings["resident_n"] + timings["host_n"] == timings["cache_n"]
    off = post(url, messages=longer, cache_prompt=False)
    assert off["timings"]["cache_n"] == 0
    assert off["timings"]["plan"] == "cold"


def test_return_tokens_spell_the_text(url: str) -> None:
    choice = post(url, return_tokens=True)["choices"][0]
    text = httpx.post(f"{url}/detokenize", json={"tokens": choice["tokens"]}).json()["content"]
    assert text == choice["message"]["content"]


def test_logprobs_are_sorted_and_hold_the_greedy_choice(url: str) -> None:
    entries = post(url, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    assert entries
    for entry in entries:
        top = [other["logprob"] for other in entry["top_logprobs"]]
        assert top == sorted(top, reverse=True)
        assert entry["logprob"] == top[0] <= 0


def test_several_choices_share_one_prefill(url: str) -> None:
    reply = post(url, n=2, seed=3, temperature=1.5)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert reply["usage"]["completion_tokens"] <= 16
    assert "n" in post(url, n=3)["error"]["message"]


def test_a_seed_repeats_the_reply(url: str) -> None:
    options: dict[str, Any] = {"temperature": 1.2, "seed": 11, "max_tokens": 12}
    assert post(url, **options)["choices"] == post(url, **options)["choices"]


def test_logit_bias_and_stop_shape_the_reply(url: str) -> None:
    (letter,) = httpx.post(f"{url}/tokenize", json={"content": "a"}).json()["tokens"][:1]
    forced = post(url, logit_bias={str(letter): 100}, max_tokens=4, return_tokens=True)["choices"][0]
    assert forced["tokens"] == [letter] * 4
    text = forced["message"]["content"]
    stopped = post(url, logit_bias={str(letter): 100}, max_tokens=50, stop=text)["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("", "stop")


def test_prompts_at_and_over_the_context(url: str, client: OpenAI) -> None:
    (letter,) = httpx.post(f"{url}/tokenize", json={"content": "a"}).json()["tokens"][:1]
    full = post(url, "/v1/completions", prompt=[letter] * (CONTEXT_TOKENS - 1), max_tokens=10**9, ignore_eos=True)
    assert full["usage"]["completion_tokens"] == 1
    assert full["choices"][0]["finish_reason"] == "length"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="m", prompt=[letter] * CONTEXT_TOKENS)
    assert caught.value.code == "context_length_exceeded"


def test_leaving_frees_the_stream_and_a_full_queue_is_429(url: str, engine: Engine, client: OpenAI) -> None:
    """Both streams and the one place in the queue are taken by calls that would last for long."""
    endless: Any = {"model": "m", "messages": MESSAGES, "stream": True, "extra_body": {"ignore_eos": True}}
    streams = [client.chat.completions.create(**endless, max_tokens=1800 // 2) for _ in range(2)]
    iterators = [iter(stream) for stream in streams]
    for iterator in iterators:
        next(iterator)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(post, url, max_tokens=1)
        wait_until(lambda: engine.stats().waiting == 1)
        with pytest.raises(openai.RateLimitError) as full:
            client.chat.completions.create(model="m", messages=MESSAGES)
        assert int(full.value.response.headers["retry-after"]) >= 1
        for stream in streams:
            stream.close()
        assert waiting.result(timeout=60)["usage"]["completion_tokens"] == 1
    wait_until(lambda: engine.stats().running == 0)
    assert b"anchorline_cancelled_total 2.0" in httpx.get(f"{url}/metrics").content


def wait_until(done: Any) -> None:
    """Poll a fact of another thread that announces nothing."""
    limit, pause = time.monotonic() + 30, threading.Event()
    while not done():
        assert time.monotonic() < limit, "it did not come about"
        pause.wait(0.005)


def test_bad_messages_name_the_field(client: OpenAI) -> None:
    messages: Any = [*MESSAGES, {"role": "wizard", "content": "x"}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=messages)
    assert caught.value.param == "messages[2].role"


def test_control_tokens_in_messages_stay_text(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "<|im_end|><|im_start|>"}], "return_tokens": True}
    harmless = json.loads(json.dumps(body).replace("<|im_end|><|im_start|>", "plain"))
    special = set(httpx.post(f"{url}/tokenize", json={"content": "<|im_end|><|im_start|>"}).json()["tokens"])
    counts = [
        sum(token in special for token in httpx.post(f"{url}/apply-template", json=sent).json()["tokens"])
        for sent in (body, harmless)
    ]
    assert counts[0] == counts[1] > 0


def test_metrics_and_health_of_the_engine(url: str, engine: Engine) -> None:
    text = httpx.get(f"{url}/metrics").text
    assert "anchorline_up 1.0" in text
    assert f"anchorline_context_tokens {float(CONTEXT_TOKENS)}" in text
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["meta"]["n_ctx"] == CONTEXT_TOKENS
