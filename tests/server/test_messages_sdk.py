"""The official Anthropic client against a listening server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import Message, MessageParam, RawMessageStreamEvent, TextBlockParam, ToolParam
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.routing import Route

from anchorline.cache.prompt import PinWish
from anchorline.config import ServerConfig
from anchorline.engine.request import FinishReason
from anchorline.errors import EngineFailure
from anchorline.output.events import (
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from anchorline.server.caller import Caller
from anchorline.server.generate import generation_endpoint
from anchorline.server.messages import prepare_messages
from anchorline.server.prepare import PreparedCall
from anchorline.server.state import ServerState
from tests.server.support import Site, listening, site

MESSAGES: list[MessageParam] = [{"role": "user", "content": "hi"}]
KEY = "secret"
STRICT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


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
def client(served: tuple[Site, str], here: Site) -> Iterator[Anthropic]:
    with Anthropic(base_url=served[1], api_key=KEY, max_retries=0) as made:
        yield made


def test_a_whole_reply(client: Anthropic) -> None:
    reply = client.messages.create(model="any", messages=MESSAGES, max_tokens=5)
    assert [block.type for block in reply.content] == ["text"]
    assert reply.content[0].to_dict() == {"type": "text", "text": "Hello"}
    assert (reply.stop_reason, reply.model, reply.role) == ("max_tokens", "bytes", "assistant")
    assert reply.usage.cache_read_input_tokens == 12
    assert reply.usage.output_tokens == 5
    assert reply._request_id is not None
    assert reply._request_id.startswith("req_")


def test_a_stream_makes_the_whole_reply(client: Anthropic) -> None:
    whole = client.messages.create(model="any", messages=MESSAGES, max_tokens=50, stop_sequences=["rld"])
    with client.messages.stream(model="any", messages=MESSAGES, max_tokens=50, stop_sequences=["rld"]) as stream:
        assert "".join(stream.text_stream) == "Hello, wo"
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "rld")
    assert final.to_dict(exclude_none=True) | {"id": whole.id} == whole.to_dict(exclude_none=True)


def test_the_raw_events_are_valid(client: Anthropic) -> None:
    events = list(client.messages.create(model="any", messages=MESSAGES, max_tokens=2, stream=True))
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    for event in events:
        STRICT.validate_python(event.to_dict(), strict=True)


def test_marks_reach_the_cache_and_come_back_as_usage(client: Anthropic, here: Site) -> None:
    marked: TextBlockParam = {"type": "text", "text": "x" * 20, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    reply = client.messages.create(model="any", messages=[{"role": "user", "content": [marked]}], max_tokens=5)
    prompt = here.engine.submitted[-1].prompt
    assert prompt.pin_wishes == (PinWish(position=len(prompt) - len(b"assistant:"), ttl_seconds=3600.0),)
    created = reply.usage.cache_creation
    assert created is not None
    restored_tokens = 12
    assert created.ephemeral_1h_input_tokens == len(b"user: \n") + 20 - restored_tokens
    assert created.ephemeral_1h_input_tokens == reply.usage.cache_creation_input_tokens
    assert created.ephemeral_5m_input_tokens == 0


def test_a_fifth_mark_is_refused_by_name(client: Anthropic) -> None:
    marked: TextBlockParam = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[4\]\.cache_control: at most 4"):
        client.messages.create(model="any", messages=[{"role": "user", "content": [marked] * 5}], max_tokens=5)


def test_counting(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="any", messages=MESSAGES, system="s")
    assert counted.input_tokens == len(b"system: s\nuser: hi\nassistant:")


def test_the_served_model(client: Anthropic) -> None:
    (listed,) = client.models.list().data
    assert listed == client.models.retrieve("bytes")
    assert (listed.type, listed.id, listed.display_name) == ("model", "bytes", "bytes")
    assert listed.created_at.year >= 2023


def test_a_token_instead_of_a_key(served: tuple[Site, str], here: Site) -> None:
    with Anthropic(base_url=served[1], auth_token=KEY, api_key=None, max_retries=0) as made:
        assert made.messages.create(model="any", messages=MESSAGES, max_tokens=5).stop_reason == "max_tokens"


def test_errors_map_to_the_clients_exceptions(client: Anthropic, here: Site, served: tuple[Site, str]) -> None:
    def create(**fields: Any) -> Message:
        given: dict[str, Any] = {"model": "any", "messages": MESSAGES, "max_tokens": 5} | fields
        made: Message = client.messages.create(**given)
        return made

    with pytest.raises(anthropic.BadRequestError, match="temperature") as bad:
        create(extra_body={"temperature": -1})
    assert bad.value.type == "invalid_request_error"
    assert bad.value.request_id is not None
    with (
        Anthropic(base_url=served[1], api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model="any", messages=MESSAGES, max_tokens=5)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.list()
    here.engine.script.queue_full = True
    with pytest.raises(anthropic.RateLimitError) as full:
        create()
    assert full.value.response.headers["retry-after"] == "3"
    here.engine.script.queue_full = False
    here.engine.script.error = EngineFailure("out of luck")
    with pytest.raises(anthropic.InternalServerError, match="out of luck"):
        create()
    with pytest.raises(anthropic.ContentTooLargeError):
        create(metadata={"user_id": "x" * served[0].state.config.limits.body_bytes})


def test_an_error_in_mid_stream_is_raised(client: Anthropic, here: Site) -> None:
    here.engine.script.error, here.engine.script.error_after = EngineFailure("out of luck"), 3
    here.engine.script.paused = True
    here.engine.allow(1)
    stream = client.messages.create(model="any", messages=MESSAGES, max_tokens=50, stream=True)
    next(stream)
    here.engine.allow(10)
    with pytest.raises(anthropic.APIStatusError, match="out of luck"):
        list(stream)


def test_closing_a_stream_cancels(client: Anthropic, here: Site) -> None:
    here.engine.script.paused = True
    here.engine.allow(1)
    stream = client.messages.create(model="any", messages=MESSAGES, max_tokens=50, stream=True)
    start = next(stream)
    assert start.type == "message_start"
    stream.close()
    here.engine.wait_for_cancel(start.message.id)
    here.engine.wait_for_finish(start.message.id)


class SaysAndCalls:
    """A parser for whose model every first reply thinks, speaks and makes two calls, and every later one answers."""

    def __init__(self, *, after_results: bool) -> None:
        self._after_results = after_results

    def feed(self, event: ReplyEvent) -> list[ReplyEvent]:
        if isinstance(event, ReplyFinished) or (self._after_results and not isinstance(event, ReasoningDelta)):
            return [event]
        if not isinstance(event, ChoiceFinished):
            return []
        made: list[ReplyEvent] = [ReasoningDelta(0, "Which one?"), TextDelta(0, "Looking.", ())]
        for number, title in enumerate(("Emma", "Ulysses")):
            arguments = json.dumps({"title": title})
            made.append(ToolCallStarted(0, number, f"toolu_{number}", "find"))
            made += [ToolCallDelta(0, number, part) for part in (arguments[:4], arguments[4:])]
            made.append(ToolCallFinished(0, number))
        return [*made, ChoiceFinished(0, FinishReason.STOP, None, calls=2)]


TOOLS: list[ToolParam] = [{"name": "find", "description": "Finds a book.", "input_schema": {"type": "object"}}]


@pytest.fixture
def calling(here: Site) -> Iterator[Anthropic]:
    """A client of a server whose model makes tool calls."""

    def prepare(raw: bytes, state: ServerState, caller: Caller) -> PreparedCall:
        call = prepare_messages(raw, state, caller)
        return replace(call, parser=SaysAndCalls(after_results=b"tool_result" in raw))

    app = Starlette(routes=[Route("/v1/messages", generation_endpoint(here.state, prepare), methods=["POST"])])
    config = ServerConfig(port=0)
    with listening(app, config) as url, Anthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_round_trip(calling: Anthropic, here: Site, streams: bool) -> None:
    def ask(messages: list[MessageParam]) -> Message:
        if not streams:
            return calling.messages.create(model="any", messages=messages, tools=TOOLS, max_tokens=500)
        with calling.messages.stream(model="any", messages=messages, tools=TOOLS, max_tokens=500) as stream:
            return stream.get_final_message()

    first = ask(MESSAGES)
    assert first.stop_reason == "tool_use"
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    calls = [block for block in first.content if block.type == "tool_use"]
    assert [call.input for call in calls] == [{"title": "Emma"}, {"title": "Ulysses"}]
    results: MessageParam = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"shelf of {call.input['title']}"}
            for call in reversed(calls)
        ],
    }
    second = ask([*MESSAGES, first.to_param(), results])
    assert second.stop_reason == "end_turn"
    prompt = bytes(here.engine.submitted[-1].prompt.tokens.astype("uint8").tobytes()).decode()
    assert prompt.split("\n")[1:] == [
        "user: hi",
        "assistant: Looking.",
        "tool: shelf of Emma",
        "tool: shelf of Ulysses",
        "assistant:",
    ]


def test_the_events_of_a_tool_call_are_valid(calling: Anthropic) -> None:
    events = list(calling.messages.create(model="any", messages=MESSAGES, tools=TOOLS, max_tokens=500, stream=True))
    for event in events:
        STRICT.validate_python(event.to_dict(), strict=True)
    first_deltas = {event.index: event for event in reversed(events) if event.type == "content_block_delta"}
    assert first_deltas[2].delta.to_dict() == {"type": "input_json_delta", "partial_json": ""}


def test_the_tool_runner_runs_tools(calling: Anthropic) -> None:
    """The client's own loop: it calls the function and sends the results until the model has no more calls."""
    asked: list[str] = []

    @anthropic.beta_tool
    def find(title: str) -> str:
        """Find a book.

        Args:
            title: Its title.
        """
        asked.append(title)
        return "shelf 3"

    runner = calling.beta.messages.tool_runner(model="any", messages=MESSAGES, tools=[find], max_tokens=500)  # type: ignore[arg-type]
    final = runner.until_done()
    assert asked == ["Emma", "Ulysses"]
    assert final.content[0].to_dict() == {"type": "text", "text": "Hello, world"}
