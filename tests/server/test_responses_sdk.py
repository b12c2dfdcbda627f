"""The official OpenAI client against ``/v1/responses`` of a listening server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from anchorline.config import ServerConfig
from anchorline.errors import EngineFailure
from tests.server.standin import Script
from tests.server.support import Site, listening, site

KEYS = ("secret", "another")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Site, str]]:
    config = ServerConfig(port=0, api_keys=KEYS)
    with site(config=config) as running, listening(running.app, config) as url:
        yield running, url


@pytest.fixture
def here(served: tuple[Site, str]) -> Site:
    served[0].engine.script = Script()
    return served[0]


@pytest.fixture
def client(served: tuple[Site, str], here: Site) -> Iterator[OpenAI]:
    with OpenAI(base_url=served[1] + "/v1", api_key=KEYS[0], max_retries=0) as made:
        yield made


@pytest.fixture
def stranger(served: tuple[Site, str]) -> Iterator[OpenAI]:
    with OpenAI(base_url=served[1] + "/v1", api_key=KEYS[1], max_retries=0) as made:
        yield made


def test_a_whole_reply(client: OpenAI) -> None:
    reply = client.responses.create(model="bytes", input="hi", instructions="be brief")
    assert (reply.output_text, reply.status) == ("Hello, world", "completed")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.input_tokens + 12


def test_a_streamed_reply(client: OpenAI) -> None:
    events = list(client.responses.create(model="bytes", input="hi", stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == text == "Hello, world"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_conversation_with_a_name_that_is_to_be_kept_for_a_day(client: OpenAI, here: Site) -> None:
    reply = client.responses.create(model="bytes", input="hi", prompt_cache_key="mine", prompt_cache_retention="24h")
    prompt = here.engine.submitted[-1].prompt
    assert reply.prompt_cache_key == prompt.conversation == "mine"
    assert [wish.ttl_seconds for wish in prompt.pin_wishes] == [86_400.0]
    with pytest.raises(openai.BadRequestError, match="prompt_cache_key") as bad:
        client.responses.create(model="bytes", input="hi", prompt_cache_key="k" * 513)
    assert bad.value.param == "prompt_cache_key"


def test_the_clients_own_stream_helper(client: OpenAI) -> None:
    with client.responses.stream(model="bytes", input="hi") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Hello, world"


def test_a_conversation_by_name(client: OpenAI) -> None:
    first = client.responses.create(model="bytes", input="hi")
    second = client.responses.create(model="bytes", input="and?", previous_response_id=first.id)
    assert client.responses.retrieve(second.id) == second
    items = list(client.responses.input_items.list(second.id, limit=1, order="asc"))
    assert [item.type for item in items] == ["message"] * 3
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_the_items_of_a_reply_can_be_sent_again(client: OpenAI) -> None:
    first = client.responses.create(model="bytes", input="hi", store=False)
    history: Any = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "and?"}]
    assert client.responses.create(model="bytes", input=history).output_text == "Hello, world"


def test_errors_map_to_the_clients_exceptions(client: OpenAI, stranger: OpenAI, here: Site) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model="bytes", input="hi", temperature=-1)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError) as unknown:
        client.responses.create(model="bytes", input="hi", previous_response_id="resp_none")
    assert unknown.value.code == "previous_response_not_found"
    mine = client.responses.create(model="bytes", input="hi")
    with pytest.raises(openai.NotFoundError):
        stranger.responses.retrieve(mine.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(mine.id)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").responses.create(model="bytes", input="hi")
    here.engine.script.queue_full = True
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="bytes", input="hi")


def test_an_error_in_mid_stream_is_told(client: OpenAI, here: Site) -> None:
    here.engine.script.error, here.engine.script.error_after = EngineFailure("out of luck"), 3
    here.engine.script.paused = True
    here.engine.allow(1)
    stream = client.responses.create(model="bytes", input="hi", stream=True)
    assert next(stream).type == "response.created"
    here.engine.allow(10)
    told, failed = list(stream)[-2:]
    assert told.type == "error"
    assert told.message == "out of luck"
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert failed.response.error.code == "server_error"


def test_closing_a_stream_cancels_and_keeps_nothing(client: OpenAI, here: Site) -> None:
    here.engine.script.paused = True
    here.engine.allow(1)
    stream = client.responses.create(model="bytes", input="hi", stream=True)
    created = next(stream)
    assert created.type == "response.created"
    stream.close()
    here.engine.wait_for_cancel(created.response.id)
    here.engine.wait_for_finish(created.response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(created.response.id)
