"""A client that leaves: the engine hears of it at once, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest
from starlette.types import Message

from anchorline.errors import BackendFailure
from tests.server.asgi import AsgiCall
from tests.server.support import Site, listening, site

BODY = {"messages": [{"role": "user", "content": "hi"}]}


def call(*, stream: bool) -> AsgiCall:
    return AsgiCall("POST", "/v1/chat/completions", json.dumps(BODY | {"stream": stream}).encode())


async def submitted(here: Site) -> str:
    await asyncio.to_thread(here.engine.wait_for_submission)
    return here.engine.submitted[0].id


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_token_cancels(here: Site, stream: bool) -> None:
    here.engine.script.paused = True
    leaving = call(stream=stream)
    async with leaving.running(here.app):
        request_id = await submitted(here)
        leaving.leave()
        await asyncio.to_thread(here.engine.wait_for_cancel, request_id)
        await asyncio.to_thread(here.engine.wait_for_finish, request_id)
    assert b"anchorline_cancelled_total 1.0" in here.state.metrics.exposition()


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_cancelled_call_did_is_logged_and_counted(
    here: Site, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "anchorline.request")
    here.engine.script.paused = True
    leaving = call(stream=stream)
    async with leaving.running(here.app):
        here.engine.allow(3)
        request_id = await submitted(here)
        await asyncio.to_thread(here.engine.wait_for_tokens, 3)
        leaving.leave()
        await asyncio.to_thread(here.engine.wait_for_finish, request_id)
    (line,) = [record.getMessage() for record in caplog.records if "status=cancelled" in record.getMessage()]
    assert line.startswith(f"id={request_id} status=cancelled plan=restore prompt=")
    assert " generated=3 " in line
    assert b'anchorline_tokens_total{source="generated"} 3.0' in here.state.metrics.exposition()
    assert b"anchorline_decode_seconds_count 0.0" in here.state.metrics.exposition()


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_failed_call_did_is_logged_and_counted(
    here: Site, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "anchorline.request")
    here.engine.script.error, here.engine.script.error_after = BackendFailure("no more"), 2
    failing = call(stream=stream)
    async with failing.running(here.app):
        pass
    (line,) = [record.getMessage() for record in caplog.records if "status=failed" in record.getMessage()]
    assert " generated=2 " in line
    assert b'anchorline_tokens_total{source="generated"} 2.0' in here.state.metrics.exposition()


@pytest.mark.anyio
async def test_leaving_in_mid_stream_cancels(here: Site) -> None:
    here.engine.script.paused = True
    leaving = call(stream=True)
    async with leaving.running(here.app):
        here.engine.allow(2)
        await leaving.wait_for_body(b'"content":"e"')
        leaving.leave()
        await asyncio.to_thread(here.engine.wait_for_cancel, here.engine.submitted[0].id)
    assert b"[DONE]" not in b"".join(leaving.body_parts)


@pytest.mark.anyio
async def test_a_broken_connection_while_writing_cancels(here: Site, caplog: pytest.LogCaptureFixture) -> None:
    here.engine.script.paused = True
    breaking = call(stream=True)
    sent = breaking.send

    async def broken_send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError("connection reset")
        await sent(message)

    breaking.send = broken_send  # type: ignore[method-assign]
    async with breaking.running(here.app):
        here.engine.allow(1)
        await asyncio.to_thread(here.engine.wait_for_submission)
        await asyncio.to_thread(here.engine.wait_for_cancel, here.engine.submitted[0].id)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.anyio
async def test_a_cancelled_handler_cancels_the_call_and_answers(here: Site) -> None:
    """What the server does at its end to requests that outlast the time they have."""
    here.engine.script.paused = True
    stopped = call(stream=False)
    task = asyncio.create_task(stopped._run(here.app))
    request_id = await submitted(here)
    task.cancel()
    await asyncio.to_thread(here.engine.wait_for_cancel, request_id)
    await task
    assert stopped.status == 503
    assert b"the server is shutting down" in b"".join(stopped.body_parts)


@pytest.mark.anyio
async def test_a_cancelled_stream_ends_with_an_error_event(here: Site) -> None:
    here.engine.script.paused = True
    here.engine.allow(1)
    stopped = call(stream=True)
    task = asyncio.create_task(stopped._run(here.app))
    await stopped.wait_for_body(b'"content":"H"')
    task.cancel()
    await task
    assert b"the server is shutting down" in stopped.body_parts[-1]
    assert b"[DONE]" not in b"".join(stopped.body_parts)
    assert stopped.sent[-1]["more_body"] is False


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_stays_is_never_cancelled(here: Site, stream: bool) -> None:
    staying = call(stream=stream)
    async with staying.running(here.app):
        pass
    assert staying.status == 200
    assert here.engine.cancelled == []
    assert b"anchorline_cancelled_total 0.0" in here.state.metrics.exposition()


@pytest.mark.anyio
async def test_leaving_while_the_body_is_read_reaches_no_engine(here: Site) -> None:
    leaving = AsgiCall("POST", "/v1/chat/completions", [b'{"messages": ', b"never sent"])
    leaving._inbox[1] = {"type": "http.disconnect"}
    async with leaving.running(here.app):
        pass
    assert here.engine.submitted == []


@pytest.mark.parametrize("stream", [False, True])
def test_closing_the_socket_cancels(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "anchorline.request")
    with site() as here, listening(here.app, here.state.config) as url:
        here.engine.script.paused = True
        if stream:
            here.engine.allow(1)
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY | {"stream": True}) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=httpx.Timeout(30, read=0.05))
        request_id = here.engine.submitted[0].id
        here.engine.wait_for_cancel(request_id)
        here.engine.wait_for_finish(request_id)
    assert any("status=cancelled" in record.getMessage() for record in caplog.records)
