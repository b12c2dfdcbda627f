"""The Messages endpoints over a stand-in engine: shapes, streams, errors of every layer, counting."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from anchorline.config import ServerConfig
from anchorline.errors import EngineFailure
from anchorline.limits import Limits
from anchorline.server.connection import _refuse
from tests.server.asgi import AsgiCall
from tests.server.support import Site, site

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
GOLDEN = Path(__file__).parent / "golden"
PATH = "/v1/messages"


async def post(here: Site, path: str = PATH, **fields: Any) -> httpx.Response:
    async with here.client() as client:
        return await client.post(path, json=BODY | fields)


def check_error(response: httpx.Response, *, status: int, kind: str, part: str) -> None:
    body = response.json()
    assert response.status_code == status, body
    assert body == {
        "type": "error",
        "error": {"type": kind, "message": body["error"]["message"]},
        "request_id": response.headers["request-id"],
    }
    assert body["request_id"].startswith("req_")
    assert part in body["error"]["message"]


async def test_a_whole_reply(here: Site) -> None:
    response = await post(here)
    assert response.headers["content-type"] == "application/json"
    assert response.headers["request-id"].startswith("req_")
    reply = response.json()
    assert reply.pop("id").startswith("msg_")
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "bytes",
        "content": [{"type": "text", "text": "Hello, world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(b"user: hi\nassistant:") - 12,
            "cache_creation_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "cache_read_input_tokens": 12,
            "output_tokens": 12,
        },
    }


async def test_the_stream_is_the_golden_transcript(here: Site) -> None:
    here.engine.script.reply = "Héy".encode()
    response = await post(here, stream=True, system="s", cache_control={"type": "ephemeral"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"].startswith("req_")
    assert response.text == (GOLDEN / "messages.sse").read_text()


async def test_the_request_that_reaches_the_engine(here: Site) -> None:
    await post(here, max_tokens=1_000_000, top_k=3, stop_sequences=["x"], cache_control={"type": "ephemeral"})
    (request,) = here.engine.submitted
    assert request.max_tokens == here.engine.context_tokens - len(request.prompt)
    assert (request.sampling.top_k, request.choices, request.use_cache) == (3, 1, True)


async def test_no_tokens_are_wanted_when_a_prompt_is_only_to_be_kept(here: Site) -> None:
    reply = (await post(here, max_tokens=0)).json()
    assert (reply["content"], reply["stop_reason"], reply["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    assert here.engine.submitted[0].max_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_sequences(here: Site, stream: bool) -> None:
    response = await post(here, stop_sequences=["lo,"], stream=stream)
    if stream:
        _, _, rest = response.text.partition("event: message_delta\ndata: ")
        end = json.loads(rest.partition("\n")[0])["delta"]
    else:
        end = response.json()
    assert (end["stop_reason"], end["stop_sequence"]) == ("stop_sequence", "lo,")


async def test_counting_renders_what_a_call_renders(here: Site) -> None:
    fields: dict[str, Any] = {"system": "Be kind.", "tools": [{"name": "f", "input_schema": {}}]}
    counted = await post(here, f"{PATH}/count_tokens", **fields)
    assert here.engine.submitted == []
    await post(here, **fields)
    assert counted.json() == {"input_tokens": len(here.engine.submitted[0].prompt)}
    assert counted.headers["request-id"].startswith("req_")


async def test_a_prompt_over_the_context_is_counted_but_not_served(here: Site) -> None:
    long = [{"role": "user", "content": "x" * 5000}]
    assert (await post(here, f"{PATH}/count_tokens", messages=long)).json()["input_tokens"] > 5000
    check_error(await post(here, messages=long), status=400, kind="invalid_request_error", part="4096")


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
async def test_a_bad_body_is_named(here: Site, path: str) -> None:
    async with here.client() as client:
        check_error(await client.post(path, content=b"{"), status=400, kind="invalid_request_error", part="JSON")
    bad = {"messages": [{"role": "user", "content": [{"type": "image"}]}]}
    check_error(await post(here, path, **bad), status=400, kind="invalid_request_error", part="messages[0].content[0]")


async def test_wrong_paths_and_methods(here: Site) -> None:
    check_error(await post(here, f"{PATH}/batches"), status=404, kind="not_found_error", part="/v1/messages/batches")
    async with here.client() as client:
        wrong = await client.get(PATH)
        check_error(wrong, status=405, kind="invalid_request_error", part="GET")
        assert wrong.headers["allow"] == "POST"
        assert "request-id" not in (await client.post("/v1/messagesx")).headers


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_before_the_first_token(here: Site, stream: bool) -> None:
    here.engine.script.queue_full = True
    full = await post(here, stream=stream)
    check_error(full, status=429, kind="rate_limit_error", part="--queue")
    assert full.headers["retry-after"] == "3"
    here.engine.script.queue_full = False
    here.engine.script.error = EngineFailure("out of luck")
    check_error(await post(here, stream=stream), status=503, kind="api_error", part="out of luck")


async def test_an_engine_that_fails_in_mid_stream(here: Site) -> None:
    here.engine.script.error, here.engine.script.error_after = EngineFailure("out of luck"), 3
    here.engine.script.paused = True
    call = AsgiCall("POST", PATH, json.dumps(BODY | {"stream": True}).encode())
    async with call.running(here.app):
        here.engine.allow(1)
        await call.wait_for_body(b"content_block_delta")
        here.engine.allow(10)
    assert b"".join(call.body_parts).endswith(
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"out of luck"}}\n\n'
    )


async def test_a_body_over_the_limit() -> None:
    with site(config=ServerConfig(port=0, limits=Limits(body_bytes=10))) as here:
        check_error(await post(here), status=413, kind="request_too_large", part="--max-body-bytes")


async def test_a_fault_of_the_server_is_told_and_logged(here: Site, caplog: pytest.LogCaptureFixture) -> None:
    del here.engine.submitted  # the stand-in fails as no AnchorlineError
    with caplog.at_level(logging.ERROR):
        check_error(await post(here), status=500, kind="api_error", part="internal error")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "secret"}, 200),
        ({"authorization": "Bearer secret"}, 200),
        ({"x-api-key": "wrong", "authorization": "Bearer secret"}, 200),
        ({"x-api-key": "secret", "authorization": "Bearer wrong"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "Bearer secret"}, 401),
        ({"authorization": "secret"}, 401),
        ({}, 401),
    ],
)
async def test_both_ways_to_show_a_key(headers: dict[str, str], status: int) -> None:
    with site(config=ServerConfig(port=0, api_keys=("secret",))) as here:
        async with here.client(**headers) as client:
            response = await client.post(PATH, json=BODY)
            assert response.status_code == status
            if status == 401:
                check_error(response, status=401, kind="authentication_error", part="x-api-key")


async def test_a_foreign_host_is_refused_in_the_same_shape(here: Site) -> None:
    async with here.client(base_url="http://evil.example") as client:
        check_error(await client.post(PATH, json=BODY), status=403, kind="permission_error", part="--allowed-host")


async def test_too_many_connections_are_told_in_the_same_shape() -> None:
    call = AsgiCall("POST", PATH, b"")
    async with call.running(_refuse):
        pass
    assert json.loads(b"".join(call.body_parts))["error"]["type"] == "overloaded_error"


async def test_a_silent_stream_begins_and_pings() -> None:
    with site(ping_seconds=0.01) as here:
        here.engine.script.paused = True
        call = AsgiCall("POST", PATH, json.dumps(BODY | {"stream": True}).encode())
        async with call.running(here.app):
            await call.wait_for_body(b'event: ping\ndata: {"type":"ping"}\n\nevent: ping')
            here.engine.allow(20)
        body = b"".join(call.body_parts)
    assert body.startswith(b"event: message_start")
    assert body.count(b"message_start") == 2  # the event and its type
    assert body.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
