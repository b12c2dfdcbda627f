"""Rendering and tokenising on threads of their own: bounded, and never in the way of the end."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from anchorline.config import ServerConfig
from anchorline.errors import EngineFailure, QueueFull, RequestError
from anchorline.limits import Limits
from anchorline.prompt.bounds import TemplateLimit
from anchorline.prompt.template import ChatTemplate
from anchorline.server.workers import Workers
from tests.server.asgi import AsgiCall
from tests.server.support import site

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def held(workers: Workers, jobs: int) -> AsyncIterator[threading.Event]:
    """All threads of ``workers`` are busy until the block ends; gives what lets them go on earlier."""
    started, go_on = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        started.release()
        go_on.wait()

    tasks = [asyncio.create_task(workers.run(wait)) for _ in range(jobs)]
    for _ in range(jobs):
        await asyncio.to_thread(started.acquire)
    try:
        yield go_on
    finally:
        go_on.set()
        await asyncio.gather(*tasks)


async def test_a_system_without_threads_left_leaves_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, none = (Workers(threads=2, waiting=10) for _ in range(2))
    async with held(workers, 1) as go_on:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            job = asyncio.create_task(workers.run(lambda: "done"))
            with pytest.raises(EngineFailure, match="no thread can be started"):
                await none.run(lambda: "done")
        go_on.set()
        assert await job == "done"
    assert workers.close(timeout_seconds=10)


async def test_results_and_errors_come_back() -> None:
    workers = Workers(threads=2, waiting=10)

    def refuse() -> None:
        raise RequestError("no", field="x")

    jobs = [workers.run(functools.partial(pow, number, 2)) for number in range(10)]
    assert await asyncio.gather(*jobs) == [number * number for number in range(10)]
    with pytest.raises(RequestError, match="no"):
        await workers.run(refuse)
    assert workers.close(timeout_seconds=10)


async def test_more_than_may_wait_are_refused_and_the_flag_is_named() -> None:
    workers = Workers(threads=2, waiting=1)
    async with held(workers, 2):
        waiting = asyncio.create_task(workers.run(lambda: "done"))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="--prepare-queue"):
            await workers.run(lambda: "never")
    assert await waiting == "done"


async def test_no_queue_still_lets_every_thread_work() -> None:
    workers = Workers(threads=2, waiting=0)
    async with held(workers, 2):
        with pytest.raises(QueueFull):
            await workers.run(lambda: None)
    assert await workers.run(lambda: 1) == 1


async def test_a_job_that_nobody_waits_for_is_not_begun() -> None:
    workers, begun = Workers(threads=1, waiting=1), []
    async with held(workers, 1):
        waiting = asyncio.create_task(workers.run(lambda: begun.append(1)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        next_one = asyncio.create_task(workers.run(lambda: 2))  # there is room again
        await asyncio.sleep(0)
    assert await next_one == 2
    assert begun == []


async def test_closing_tells_whether_a_job_still_runs() -> None:
    workers = Workers(threads=1, waiting=1)
    async with held(workers, 1) as go_on:
        assert not workers.close(timeout_seconds=0)
        go_on.set()
        assert await asyncio.to_thread(workers.close, timeout_seconds=30)


ENDLESS = "{{ x }}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("how", ["leave", "cancel"])
async def test_a_call_that_is_given_up_ends_its_render(how: str) -> None:
    """A client that leaves while its prompt is made does not keep the thread."""
    with site() as here:
        template, begun = ChatTemplate(ENDLESS), threading.Event()
        ended: list[BaseException] = []

        class Begins:
            def __str__(self) -> str:
                begun.set()
                return ""

        def endless(*_: Any, **__: Any) -> Any:
            try:
                return template.render(
                    [],
                    tools=None,
                    add_generation_prompt=True,
                    bos_token="",
                    eos_token="",
                    kwargs={"x": Begins()},
                    now=datetime(2024, 5, 17),
                )
            except TemplateLimit as error:
                ended.append(error)
                raise

        here.state.prompts.chat = endless  # type: ignore[method-assign]
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
        call = AsgiCall("POST", "/v1/chat/completions", body)
        task = asyncio.create_task(call._run(here.app))
        await asyncio.to_thread(begun.wait)
        if how == "leave":
            call.leave()
        else:
            task.cancel()
        await task
        assert await asyncio.to_thread(here.state.workers.close, timeout_seconds=30)
        assert "--max-template-seconds" in str(ended[0])  # not its steps, which end it too
        assert call.status == (499 if how == "leave" else 503)


ENDING = """
import asyncio, threading
from anchorline.prompt.bounds import TemplateLimit
from anchorline.prompt.template import ChatTemplate
from anchorline.server.workers import Workers
from tests.server.asgi import AsgiCall

async def main():
    workers, begun = Workers(threads=1, waiting=0), threading.Event()
    task = asyncio.create_task(workers.run(lambda: (begun.set(), threading.Event().wait())))
    while not begun.is_set():
        await asyncio.sleep(0)

asyncio.run(main())
"""


def test_a_job_without_an_end_does_not_keep_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", ENDING], timeout=30, check=False).returncode == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/apply-template"])
async def test_too_many_requests_at_once_are_429(path: str) -> None:
    limits = Limits(preparing=1, preparing_queue=0)
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "a", "content": "a"}
    with site(config=ServerConfig(port=0, limits=limits)) as here:
        async with here.client() as client:
            async with held(here.state.workers, 1):
                refused = await client.post(path, content=json.dumps(body))
                assert (await client.get("/health")).status_code == 200
                assert (await client.get("/metrics")).status_code == 200
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert "--prepare-queue" in refused.json()["error"]["message"]
            assert (await client.post(path, content=json.dumps(body))).status_code == 200
