"""A live server that follows a script: forced tokens through the real decode, cache and wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI

from anchorline.config import EngineConfig
from anchorline.llama.model import Model
from anchorline.script.rules import Match, Reply, Rule
from tests.support.serving import serving

ENGINE = EngineConfig(parallel=2, queue=4, resident_idle=1, cache_ram_bytes=64 << 20)
FIRST: list[Any] = [{"role": "system", "content": "You help. " * 50}, {"role": "user", "content": "one"}]
RULES = (
    Rule(match=Match(contains="one"), reply=Reply(content="The first answer: é 東京."), repeat=True),
    Rule(match=Match(contains="two"), reply=Reply(content="The second answer.")),
)


@contextmanager
def client_on(model: Model, *rules: Rule) -> Iterator[OpenAI]:
    with (
        serving(model, ENGINE, rules=rules) as live,
        OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(spelling_model: Model) -> Iterator[OpenAI]:
    with client_on(spelling_model, *RULES) as client:
        yield client


def test_a_turn_is_answered_from_the_script_and_the_next_one_restores_it(client: OpenAI) -> None:
    first = client.chat.completions.create(model="m", messages=FIRST)
    said = first.choices[0].message.content
    assert said == "The first answer: é 東京."
    assert first.choices[0].finish_reason == "stop"
    messages = [*FIRST, {"role": "assistant", "content": said}, {"role": "user", "content": "two"}]
    second = client.chat.completions.create(model="m", messages=messages)
    assert second.choices[0].message.content == "The second answer."
    assert first.usage is not None
    assert second.usage is not None
    details = second.usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens == first.usage.total_tokens
    assert second.usage.prompt_tokens - first.usage.total_tokens < 30


def test_every_choice_and_a_stream_say_the_same(client: OpenAI) -> None:
    several = client.chat.completions.create(model="m", messages=FIRST, n=2)
    assert {choice.message.content for choice in several.choices} == {"The first answer: é 東京."}
    chunks = client.chat.completions.create(model="m", messages=FIRST, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The first answer: é 東京."


def test_limits_and_stop_strings_hold_for_scripted_replies(client: OpenAI) -> None:
    short = client.chat.completions.create(model="m", messages=FIRST, max_tokens=2)
    assert short.choices[0].finish_reason == "length"
    stopped = client.chat.completions.create(model="m", messages=FIRST, stop=["answer"])
    assert stopped.choices[0].message.content == "The first "
    assert stopped.choices[0].finish_reason == "stop"
