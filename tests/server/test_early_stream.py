"""Streams that begin while they wait for their model."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from starlette.responses import Response
from starlette.types import Message

from anchorline.server import switching_app
from anchorline.server.early_stream import EarlyStream
from anchorline.server.generate import CLIENT_CLOSED
from tests.server.asgi import AsgiCall
from tests.server.several import (
    MESSAGES,
    StandInSource,
    ask,
    several,
    until,
)
from tests.server.standin import StandInEngine

STREAMED = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


def streamed(path: str) -> AsgiCall:
    body = {"model": "a", "stream": True, "max_tokens": 20, "messages": MESSAGES, "input": "hi"}
    return AsgiCall("POST", path, json.dumps(body).encode())


@pytest.mark.anyio
@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_says_that_it_waits_for_its_model(path: str) -> None:
    async with several() as here:
        here.source.may_load.clear()
        call = streamed(path)
        async with call.running(here.app):
            await call.wait_for_body(b": waiting\n\n: waiting\n\n")
            here.source.may_load.set()
        assert [message["type"] for message in call.sent].count("http.response.start") == 1
        assert call.status == 200
        body = b"".join(call.body_parts)
        assert body.lstrip(b": waiting\n").startswith((b"data: {", b"event: "))
        assert not call.sent[-1].get("more_body")


@pytest.mark.anyio
@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_that_has_begun_hears_in_an_event_that_its_model_cannot_be_loaded(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="anchorline.request")
    async with several(StandInSource(damaged={"a"})) as here:
        here.source.may_load.clear()
        call = streamed(path)
        async with call.running(here.app):
            await call.wait_for_body(b": waiting\n\n")
            here.source.may_load.set()
        event = call.body_parts[-1]
        assert b"a is damaged" in event
        said = json.loads(event.partition(b"data: ")[2])
        assert event.startswith(b"data: " if path.endswith("completions") else b"event: error\ndata: ")
        assert said.get("type") == (None if path.endswith("completions") else "error")
        (line,) = [record.message for record in caplog.records if record.name == "anchorline.request"]
        assert f"path={path} status=503 code=engine_failure" in line
        assert not call.sent[-1]["more_body"]


@pytest.mark.anyio
async def test_a_request_that_the_model_refuses_after_the_wait_is_refused_in_an_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="anchorline.request")
    async with several() as here:
        here.source.may_load.clear()
        call = AsgiCall("POST", "/v1/chat/completions", b'{"model": "a", "stream": true, "messages": 3}')
        async with call.running(here.app):
            await call.wait_for_body(b": waiting\n\n")
            here.source.may_load.set()
        event = call.body_parts[-1]
        assert event.startswith(b"data: ")
        assert json.loads(event.removeprefix(b"data: "))["error"]["param"] == "messages"
        (line,) = [record.message for record in caplog.records if record.name == "anchorline.request"]
        assert "status=400" in line
        assert "field=messages" in line
        assert [message["type"] for message in call.sent].count("http.response.start") == 1


@pytest.mark.anyio
@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_that_has_begun_hears_of_the_end_of_the_server(path: str) -> None:
    async with several() as here:
        here.source.may_load.clear()
        call = streamed(path)
        task = asyncio.create_task(here.app(call.scope, call.receive, call.send))
        await call.wait_for_body(b": waiting\n\n")
        task.cancel()
        await asyncio.wait([task])
        assert b"the server is shutting down" in call.body_parts[-1]
        assert not call.sent[-1]["more_body"]


@pytest.mark.anyio
async def test_a_stream_that_has_begun_hears_of_what_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    async with several() as here:
        here.source.may_load.clear()
        call = streamed("/v1/chat/completions")
        monkeypatch.setattr(StandInEngine, "submit", None)
        async with call.running(here.app):
            await call.wait_for_body(b": waiting\n\n")
            here.source.may_load.set()
        assert b"internal error" in call.body_parts[-1]
        assert not call.sent[-1]["more_body"]


@pytest.mark.anyio
async def test_a_stream_that_has_begun_just_ends_when_its_client_has_left() -> None:
    call = streamed("/v1/chat/completions")
    stream = EarlyStream(call.send, call.scope)
    await stream.ping()
    await Response(status_code=CLIENT_CLOSED)(call.scope, call.receive, stream)
    assert call.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.mark.anyio
async def test_a_stream_whose_client_leaves_while_it_waits_ends() -> None:
    async with several() as here, here.client() as client:
        here.source.may_load.clear()
        call = streamed("/v1/chat/completions")
        async with call.running(here.app):
            await call.wait_for_body(b": waiting\n\n")
            call.leave()
        await until(lambda: here.switch.waiting == 0)
        here.source.may_load.set()
        assert await ask(client, "b") == "this is b"


@pytest.mark.anyio
async def test_a_client_that_takes_nothing_of_its_reply_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switching_app, "TAKE_SECONDS", 0.01)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async with several() as here, here.client() as client:
        call = streamed("/v1/chat/completions")
        task = asyncio.create_task(here.app(call.scope, call.receive, send))
        async with asyncio.timeout(30):
            assert await ask(client, "b") == "this is b"
            await task


@pytest.mark.anyio
async def test_a_turn_that_comes_as_the_connection_breaks_is_given_back() -> None:
    async with several() as here, here.client() as client:
        here.source.may_load.clear()
        call = streamed("/v1/chat/completions")

        async def send(message: Message) -> None:
            if message.get("body"):
                here.source.may_load.set()
                await until(lambda: here.switch.loaded is not None and here.switch.waiting == 0)
                for _ in range(5):
                    await asyncio.sleep(0)  # by then the turn was taken
                raise OSError("the connection is gone")

        await here.app(call.scope, call.receive, send)
        assert await ask(client, "b") == "this is b", "nobody uses a any more"
