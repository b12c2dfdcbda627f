"""The official OpenAI client against a listening server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from anchorline.config import ServerConfig
from anchorline.errors import EngineFailure
from tests.server.support import Site, listening, site

MESSAGES: Any = [{"role": "user", "content": "hi"}]
KEY = "secret"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Site, str]]:
    """One listening server for this file; every test resets what the engine says."""
    with site(config=ServerConfig(port=0, api_keys=(KEY,))) as here, listening(here.app, here.state.config) as url:
        yield here, url


@pytest.fixture
def here(served: tuple[Site, str]) -> Iterator[Site]:
    script = type(served[0].engine.script)()
    served[0].engine.script = script
    yield served[0]
    served[0].engine.script = type(script)()


@pytest.fixture
def client(served: tuple[Site, str], here: Site) -> Iterator[OpenAI]:
    with OpenAI(base_url=served[1] + "/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_a_whole_reply(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="bytes", messages=MESSAGES, max_tokens=5)
    assert reply.choices[0].message.content == "Hello"
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 12
    assert reply.usage.completion_tokens == 5
    assert reply.model_extra is not None
    assert reply.model_extra["timings"]["plan"] == "restore"


def test_a_stream_with_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="bytes", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello, world"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 19 + 12
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_conversation_with_a_name_that_is_to_be_kept_for_a_day(client: OpenAI, here: Site) -> None:
    client.chat.completions.create(
        model="bytes", messages=MESSAGES, prompt_cache_key="mine", prompt_cache_retention="24h"
    )
    prompt = here.engine.submitted[-1].prompt
    assert prompt.conversation == "mine"
    assert [wish.ttl_seconds for wish in prompt.pin_wishes] == [86_400.0]
    with pytest.raises(openai.BadRequestError, match="prompt_cache_retention") as bad:
        client.chat.completions.create(
            model="bytes", messages=MESSAGES, extra_body={"prompt_cache_retention": "forever"}
        )
    assert bad.value.param == "prompt_cache_retention"


def test_a_stream_without_usage(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="bytes", messages=MESSAGES, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_several_choices(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="bytes", messages=MESSAGES, n=2)
    assert [choice.message.content for choice in reply.choices] == ["Hello, world"] * 2
    stream = client.chat.completions.create(model="bytes", messages=MESSAGES, n=2, stream=True)
    texts = {0: "", 1: ""}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "Hello, world", 1: "Hello, world"}


def test_stop_strings_split_over_tokens(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="bytes", messages=MESSAGES, stop=["lo,"])
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("Hel", "stop")


def test_logprobs(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="bytes", messages=MESSAGES, logprobs=True, top_logprobs=2, max_tokens=2
    )
    found = reply.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [entry.token for entry in found.content] == ["H", "e"]
    assert [top.token for top in found.content[0].top_logprobs] == ["A", "B"]


def test_text_completions(client: OpenAI) -> None:
    reply = client.completions.create(model="bytes", prompt="x", max_tokens=4, logprobs=1)
    assert reply.choices[0].text == "Hell"
    assert reply.choices[0].logprobs is not None
    assert reply.choices[0].logprobs.text_offset == [0, 1, 2, 3]
    chunks = list(client.completions.create(model="bytes", prompt=[1, 2], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello, world"


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["bytes"]
    assert client.models.retrieve("bytes").id == "bytes"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_map_to_the_clients_exceptions(client: OpenAI, here: Site, served: tuple[Site, str]) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="bytes", messages=MESSAGES, temperature=-1)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    with (
        OpenAI(base_url=served[1] + "/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="bytes", input="x")
    here.engine.script.queue_full = True
    with pytest.raises(openai.RateLimitError) as full:
        client.chat.completions.create(model="bytes", messages=MESSAGES)
    assert full.value.response.headers["retry-after"] == "3"


def test_an_error_in_mid_stream_is_raised(client: OpenAI, here: Site) -> None:
    here.engine.script.error, here.engine.script.error_after = EngineFailure("out of luck"), 3
    here.engine.script.paused = True
    here.engine.allow(1)
    stream = client.chat.completions.create(model="bytes", messages=MESSAGES, stream=True)
    next(stream)
    here.engine.allow(10)
    with pytest.raises(openai.APIError, match="out of luck"):
        list(stream)


def test_closing_a_stream_cancels(client: OpenAI, here: Site) -> None:
    here.engine.script.paused = True
    here.engine.allow(1)
    stream = client.chat.completions.create(model="bytes", messages=MESSAGES, stream=True)
    request_id = next(stream).id
    stream.close()
    here.engine.wait_for_cancel(request_id)
    here.engine.wait_for_finish(request_id)
