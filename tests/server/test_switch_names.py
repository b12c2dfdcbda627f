"""Which model a request gets, and what is said of those there are."""

from __future__ import annotations

import asyncio
import json
import sys
import tracemalloc
from typing import Any

import pytest

from anchorline.config import ServerConfig
from tests.server.asgi import AsgiCall
from tests.server.several import (
    MESSAGES,
    StandInSource,
    ask,
    chat,
    several,
    until,
)


@pytest.mark.anyio
async def test_each_is_loaded_when_it_is_named_in_the_place_of_the_one_before() -> None:
    async with several() as here, here.client() as client:
        assert here.source.log == []
        assert [await ask(client, name) for name in ("b", "b", "a")] == ["this is b", "this is b", "this is a"]
        assert here.source.log == ["load b", "loaded b", "stop b", "free b", "load a", "loaded a"]
        assert await ask(client, None) == "this is a", "where none is named, the loaded one answers"


@pytest.mark.anyio
async def test_where_nothing_is_loaded_the_first_answers_who_names_none() -> None:
    async with several() as here, here.client() as client:
        assert await ask(client, None) == "this is a"


@pytest.mark.anyio
async def test_every_endpoint_finds_the_model_that_is_named() -> None:
    async with several() as here, here.client() as client:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("/v1/completions", {"prompt": "hi"}),
            ("/v1/responses", {"input": "hi"}),
            ("/v1/messages", {"messages": MESSAGES, "max_tokens": 20}),
            ("/v1/messages/count_tokens", {"messages": MESSAGES}),
            ("/tokenize", {"content": "hi"}),
            ("/apply-template", {"messages": MESSAGES}),
            ("/api/show", {}),
        ]
        for index, (path, body) in enumerate(calls):
            name = "abc"[index % 3]
            response = await client.post(path, json={"model": name, **body})
            assert response.status_code == 200, response.text
            assert here.source.log[-1] == f"loaded {name}", path
        for path in ("/props", "/v1/props", "/cache/requests"):
            for name in "ab":
                assert (await client.get(path, params={"model": name})).status_code == 200
                assert here.source.log[-1] == f"loaded {name}", path
        assert (await client.get("/props")).json()["model_alias"] == "b"


@pytest.mark.anyio
async def test_what_is_said_of_models_loads_none() -> None:
    async with several() as here, here.client() as client:
        listed = (await client.get("/v1/models")).json()
        assert [(entry["id"], entry["status"]) for entry in listed["data"]] == [
            (name, {"value": "unloaded"}) for name in "abc"
        ]
        for path in ("/health", "/metrics", "/v1/models/b", "/models", "/api/tags"):
            assert (await client.get(path)).status_code == 200
        assert here.source.log == []
        await ask(client, "b")
        assert (await client.get("/health")).json() == {
            "status": "ok",
            "models": {"a": "unloaded", "b": "loaded", "c": "unloaded"},
            "waiting": 0,
        }
        await ask(client, "a")
        known = (await client.get("/v1/models/b")).json()
        assert (known["status"], known["meta"]["n_ctx"]) == ({"value": "unloaded"}, 4096)
        anthropic = (await client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
        assert [entry["display_name"] for entry in anthropic["data"]] == ["a", "b", "c"]
        assert b"anchorline_requests_total" in (await client.get("/metrics")).content


@pytest.mark.anyio
async def test_which_models_there_are_is_told_to_nobody_without_a_key() -> None:
    async with several(config=ServerConfig(port=0, api_keys=("key",))) as here, here.client() as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/v1/models")).status_code == 401
        assert "models" in (await client.get("/health", headers={"x-api-key": "key"})).json()


@pytest.mark.anyio
async def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    async with several() as here, here.client() as client:
        said = {}
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"):
            response = await client.post(path, json={"model": "claude", "max_tokens": 1, "messages": MESSAGES})
            assert response.status_code == 404
            said[path] = response.json()
        messages = said.pop("/v1/messages")
        assert messages["type"] == "error"
        assert messages["error"]["type"] == "not_found_error"
        for body in said.values():
            assert (body["error"]["code"], body["error"]["param"]) == ("model_not_found", "model")
        for body in (messages, *said.values()):
            assert body["error"]["message"] == "the model 'claude' is not served; there are a, b, c"
        assert (await client.get("/v1/models/claude")).json()["error"]["code"] == "model_not_found"
        anthropic = await client.get("/v1/models/claude", headers={"anthropic-version": "2023-06-01"})
        assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (404, "not_found_error")
        assert here.source.log == []


@pytest.mark.anyio
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 3}', b'{"model": ""}', b"\xff"])
async def test_a_body_without_a_name_is_refused_by_the_model_that_reads_it(body: bytes) -> None:
    async with several() as here, here.client() as client:
        assert (await client.post("/v1/chat/completions", content=body)).status_code == 400


@pytest.mark.anyio
async def test_the_body_goes_before_what_stands_behind_the_path() -> None:
    async with several() as here, here.client() as client:
        response = await client.post("/v1/chat/completions?model=a", json=chat("b"))
        assert response.json()["model"] == "b"


@pytest.mark.anyio
async def test_what_stands_for_a_name_and_is_none_is_not_built() -> None:
    lists = 200_000
    body = b'{"model": [' + b"[]," * lists + b"[]]}"
    async with several() as here, here.client() as client:
        await ask(client, "a")
        tracemalloc.start()
        try:
            assert (await client.post("/v1/chat/completions", content=body)).status_code == 400
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 4 * len(body) < lists * sys.getsizeof([])


@pytest.mark.anyio
async def test_a_body_is_not_kept_while_its_reply_is_generated() -> None:
    padding = b" " * (8 << 20)
    async with several(StandInSource(paused=True)) as here:
        parts = [json.dumps(chat("a")).encode()[:-1], padding, b"}"]
        call = AsgiCall("POST", "/v1/chat/completions", parts)
        tracemalloc.start()
        try:
            async with call.running(here.app):
                await asyncio.to_thread(here.source.loading.wait, 30)
                await until(lambda: "a" in here.source.engines)
                await asyncio.to_thread(here.source.engines["a"].wait_for_submission)
                kept_bytes, _ = tracemalloc.get_traced_memory()
                here.source.engines["a"].allow(100)
        finally:
            tracemalloc.stop()
        assert kept_bytes < len(padding) / 2
