"""Models that take turns: who waits, what fails, and what ends."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from anchorline.server.app import ModelApp
from anchorline.server.switch import FAILED_SECONDS
from tests.server.asgi import AsgiCall
from tests.server.several import (
    Several,
    StandInModel,
    StandInSource,
    Unordered,
    ask,
    chat,
    several,
    until,
)


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
async def test_loads_are_counted_and_timed() -> None:
    async with several() as here, here.client() as client:
        here.source.may_load.clear()
        first = asyncio.create_task(ask(client, "a"))
        await asyncio.to_thread(here.source.loading.wait, 30)
        here.seconds.append(3.0)
        here.source.may_load.set()
        await first
        for name in "ba":
            await ask(client, name)
        told = (await client.get("/metrics")).text.splitlines()
    assert {line for line in told if line.startswith("anchorline_model_load") and "bucket" not in line} >= {
        'anchorline_model_loads_total{model="a"} 2.0',
        'anchorline_model_loads_total{model="b"} 1.0',
        "anchorline_model_load_seconds_count 3.0",
        "anchorline_model_load_seconds_sum 3.0",
        'anchorline_model_loaded{model="a"} 1.0',
        'anchorline_model_loaded{model="b"} 0.0',
        'anchorline_model_loaded{model="c"} 0.0',
    }


@pytest.mark.anyio
async def test_the_time_a_call_waited_for_its_model_is_told() -> None:
    async with several() as here, here.client() as client:
        here.source.may_load.clear()
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=chat("a")))
        await asyncio.to_thread(here.source.loading.wait, 30)
        here.seconds.append(40.0)
        here.source.may_load.set()
        waited, at_once = (await waiting).json(), (await client.post("/v1/chat/completions", json=chat("a"))).json()
        assert waited["timings"]["switch_ms"] == 40_000
        assert "switch_ms" not in at_once["timings"]
        first, second = here.source.engines["a"].submitted
        assert second.received_seconds - first.received_seconds == 40
        listed = (await client.get("/cache/requests?model=a")).json()["data"]
        assert [call["switch_ms"] for call in listed] == [0.0, 40_000.0]


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
