"""Models that take turns: stand-ins behind the real switch and its application."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import Message

from anchorline.config import ServerConfig
from anchorline.engine.stats import EngineStats
from anchorline.errors import ModelError
from anchorline.metrics.metrics import Metrics
from anchorline.server import switching_app
from anchorline.server.app import ModelApp
from anchorline.server.early_stream import EarlyStream
from anchorline.server.generate import CLIENT_CLOSED
from anchorline.server.state import ServerState
from anchorline.server.switch import FAILED_SECONDS, ModelSwitch
from anchorline.server.switching_app import build_switching_app
from tests.server.asgi import AsgiCall
from tests.server.standin import StandInEngine
from tests.server.support import CREATED, make_state

CONFIG = ServerConfig(port=0, model_alias=None)
MESSAGES = [{"role": "user", "content": "hi"}]


@dataclass
class StandInModel:
    """Implements ``HostedModel``."""

    state: ServerState
    engine: StandInEngine
    log: list[str]
    used: set[str]
    """Names of those that threads still use."""

    def stop(self) -> None:
        self.engine.close()
        self.log.append(f"stop {self.state.served.name}")

    def free(self) -> bool:
        if self.state.served.name in self.used:
            return False
        self.log.append(f"free {self.state.served.name}")
        return self.state.workers.close(timeout_seconds=5)


@dataclass
class StandInSource:
    """Implements ``ModelSource``: a model is an engine that says its name."""

    names: Sequence[str] = ("a", "b", "c")
    broken: set[str] = field(default_factory=set)
    """Cannot be loaded, as is plain …"""
    damaged: set[str] = field(default_factory=set)
    """… or turns out."""
    used: set[str] = field(default_factory=set)
    """Cannot be freed as yet."""
    log: list[str] = field(default_factory=list)
    engines: dict[str, StandInEngine] = field(default_factory=dict)
    paused: bool = False
    """Makes replies wait for ``StandInEngine.allow``."""

    def __post_init__(self) -> None:
        self.may_load = threading.Event()
        self.may_load.set()
        self.loading = threading.Event()

    def stats(self) -> EngineStats:
        return replace(EngineStats.of_none(), host_used_bytes=77)

    @property
    def loads(self) -> list[str]:
        """What was loaded, one after another."""
        return [line.removeprefix("load ") for line in self.log if line.startswith("load ")]

    def check(self, name: str) -> None:
        if name in self.broken:
            raise ModelError(f"{name} is no model")

    def load(self, name: str) -> StandInModel:
        self.log.append(f"load {name}")
        self.loading.set()
        if not self.may_load.wait(timeout=30):
            self.log.append("nobody let it go on")
        self.log.append(f"loaded {name}")
        if name in self.damaged:
            raise ModelError(f"{name} is damaged")
        engine = StandInEngine()
        engine.script.reply = f"this is {name}".encode()
        engine.script.paused = self.paused
        engine.start()
        self.engines[name] = engine
        return StandInModel(
            make_state(engine, config=ServerConfig(port=0, model_alias=name)), engine, self.log, self.used
        )


class Unordered(Exception):
    """What a model raises that does not end in order."""

    @classmethod
    def fail(cls) -> NoReturn:
        raise cls


@dataclass
class Several:
    source: StandInSource
    switch: ModelSwitch
    app: Starlette
    seconds: list[float]
    """What the clock shows, the last one."""

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://127.0.0.1")


@asynccontextmanager
async def several(
    source: StandInSource | None = None, *, queue: int = 8, max_passes: int = 16, config: ServerConfig = CONFIG
) -> AsyncIterator[Several]:
    source = source or StandInSource()
    seconds = [0.0]
    switch = ModelSwitch(source=source, queue=queue, max_passes=16, clock=lambda: seconds[-1])
    app = build_switching_app(
        switch, config, metrics=Metrics(), new_id=lambda: "id", created=CREATED, ping_seconds=0.01
    )
    try:
        yield Several(source, switch, app, seconds)
    finally:
        source.may_load.set()
        for engine in source.engines.values():
            engine.close()


def chat(model: str | None, **fields: Any) -> dict[str, Any]:
    named = {} if model is None else {"model": model}
    return {"messages": MESSAGES, **named, **fields}


async def ask(client: httpx.AsyncClient, model: str | None, **fields: Any) -> str:
    response = await client.post("/v1/chat/completions", json=chat(model, **fields))
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


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


@pytest.mark.anyio
async def test_a_switch_waits_for_open_calls_and_later_ones_wait_behind_it() -> None:
    async with several(StandInSource(paused=True)) as here, here.client() as client:
        first = asyncio.create_task(ask(client, "a"))
        await asyncio.to_thread(here.source.loading.wait, 30)
        await until(lambda: "a" in here.source.engines)
        await asyncio.to_thread(here.source.engines["a"].wait_for_submission)
        here.source.paused = False
        other, late = asyncio.create_task(ask(client, "b")), asyncio.create_task(ask(client, "a"))
        await until(lambda: here.switch.waiting == 2)
        assert len(here.source.engines["a"].submitted) == 1
        assert here.source.loads == ["a"]
        here.source.engines["a"].allow(100)
        assert [await first, await other, await late] == ["this is a", "this is b", "this is a"]
        assert here.source.loads == ["a", "b", "a"]


@pytest.mark.anyio
async def test_those_who_wait_for_one_model_go_together() -> None:
    async with several() as here, here.client() as client:
        here.source.may_load.clear()
        tasks = [asyncio.create_task(ask(client, name)) for name in "abababa"]
        await until(lambda: here.switch.waiting == 7)
        here.source.may_load.set()
        assert Counter(await asyncio.gather(*tasks)) == {"this is a": 4, "this is b": 3}
        assert here.source.loads == ["a", "b"]


@pytest.mark.anyio
async def test_who_leaves_gives_the_place_up() -> None:
    async with several() as here, here.client() as client:
        here.source.may_load.clear()
        first = asyncio.create_task(ask(client, "a"))
        leaving = AsgiCall("POST", "/v1/chat/completions", json.dumps(chat("b")).encode())
        async with leaving.running(here.app):
            await until(lambda: here.switch.waiting == 2)
            leaving.leave()
        assert here.switch.waiting == 1
        here.source.may_load.set()
        assert await first == "this is a"
        assert await ask(client, "a") == "this is a"
        assert here.source.loads == ["a"], "nobody waits for b any more"


@pytest.mark.anyio
async def test_who_leaves_while_the_own_model_is_loaded_leaves_it_usable() -> None:
    async with several() as here, here.client() as client:
        here.source.may_load.clear()
        leaving = AsgiCall("POST", "/v1/chat/completions", json.dumps(chat("b")).encode())
        async with leaving.running(here.app):
            await until(lambda: here.switch.waiting == 1)
            leaving.leave()
        here.source.may_load.set()
        assert await ask(client, "c") == "this is c"
        assert here.switch.waiting == 0


@pytest.mark.anyio
async def test_one_more_than_may_wait_is_told_when_to_come_again() -> None:
    async with several(queue=2) as here, here.client() as client:
        here.source.may_load.clear()
        tasks = [asyncio.create_task(ask(client, name)) for name in "ab"]
        await until(lambda: here.switch.waiting == 2)
        refused = await client.post("/v1/chat/completions", json=chat("c"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        here.source.may_load.set()
        await asyncio.gather(*tasks)


@pytest.mark.anyio
async def test_a_model_that_cannot_be_loaded_fails_for_those_who_asked_and_for_nobody_else() -> None:
    async with several(StandInSource(damaged={"b"})) as here, here.client() as client:
        await ask(client, "a")
        failed = await client.post("/v1/chat/completions", json=chat("b"))
        assert failed.status_code == 503
        assert failed.json()["error"]["message"] == "the model 'b' cannot be loaded: b is damaged"
        assert await ask(client, "a") == "this is a"
        again = await client.post("/v1/messages", json=chat("b", max_tokens=1))
        assert (again.status_code, again.json()["error"]["type"]) == (503, "api_error")
        assert here.source.loads == ["a", "b", "a"], "it is not tried again at once"
        here.source.damaged.clear()
        here.seconds.append(FAILED_SECONDS)
        assert await ask(client, "b") == "this is b"


@pytest.mark.anyio
async def test_a_file_that_is_plainly_no_model_costs_the_loaded_one_nothing() -> None:
    async with several(StandInSource(broken={"b"})) as here, here.client() as client:
        await ask(client, "a")
        assert (await client.post("/v1/chat/completions", json=chat("b"))).status_code == 503
        assert await ask(client, "a") == "this is a"
        assert here.source.loads == ["a"]


@pytest.mark.anyio
async def test_an_engine_that_has_failed_is_replaced() -> None:
    async with several() as here, here.client() as client:
        await ask(client, "a")
        here.source.engines["a"].close()
        assert await ask(client, "a") == "this is a"
        assert here.source.log == ["load a", "loaded a", "stop a", "free a", "load a", "loaded a"]


@pytest.mark.anyio
async def test_a_model_that_a_thread_still_uses_is_freed_at_the_next_switch() -> None:
    async with several(StandInSource(used={"a"})) as here, here.client() as client:
        assert [await ask(client, name) for name in "ab"] == ["this is a", "this is b"]
        assert here.source.log == ["load a", "loaded a", "stop a", "load b", "loaded b"]
        here.source.used.clear()
        await ask(client, "c")
        assert here.source.log[5:] == ["stop b", "free a", "free b", "load c", "loaded c"]


@pytest.mark.anyio
@pytest.mark.parametrize("broken", [(ModelApp, "close"), (StandInModel, "stop"), (StandInModel, "free")])
async def test_a_model_that_does_not_end_in_order_is_freed_and_costs_the_others_nothing(
    broken: tuple[type, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with several() as here, here.client() as client:
        await ask(client, "a")
        kind, step = broken
        monkeypatch.setattr(kind, step, lambda _self: Unordered.fail())
        assert await ask(client, "b") == "this is b"
        monkeypatch.undo()
        assert await ask(client, "c") == "this is c"
        assert ("free a" in here.source.log) == (step != "free")
        assert here.source.log[-4:] == ["stop b", "free b", "load c", "loaded c"]
    (line,) = [record for record in caplog.records if record.exc_info and record.name == "anchorline.models"]
    assert "a failed" in line.message


@pytest.mark.anyio
async def test_a_load_under_way_does_not_hold_up_the_end() -> None:
    async with several() as here, here.client() as client:
        here.source.may_load.clear()
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=chat("a")))
        await asyncio.to_thread(here.source.loading.wait, 30)
        waiting.cancel()
        here.switch.close(timeout_seconds=3600)
        assert here.source.log == ["load a"], "it was not waited for"


@pytest.mark.anyio
async def test_what_is_loaded_is_unloaded_at_the_end() -> None:
    async with several() as here, here.client() as client:
        await ask(client, "a")
        here.switch.close(timeout_seconds=5)
        assert here.source.log == ["load a", "loaded a", "stop a", "free a"]


def test_what_was_about_to_be_unloaded_when_the_server_ended_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin_to_unload() -> Several:
        closing = asyncio.Event()

        async def close(app: ModelApp) -> None:
            closing.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(ModelApp, "close", close)
        async with several() as here, here.client() as client:
            await ask(client, "a")
            waiting = asyncio.create_task(ask(client, "b"))
            await closing.wait()
            waiting.cancel()
        return here

    here = asyncio.run(begin_to_unload())
    here.switch.close(timeout_seconds=5)
    assert here.source.log == ["load a", "loaded a", "stop a", "free a"]


@pytest.mark.anyio
async def test_figures_are_those_of_the_loaded_model() -> None:
    async with several() as here, here.client() as client:
        assert here.switch.stats() == here.source.stats()
        await ask(client, "a")
        assert here.switch.stats() == here.source.engines["a"].stats()


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


async def until(holds: Any) -> None:
    """Let other tasks run until that is so."""
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0)
