"""Stand-ins for models behind the real switch and its application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import httpx
from starlette.applications import Starlette

from anchorline.config import ServerConfig
from anchorline.engine.stats import EngineStats
from anchorline.errors import ModelError
from anchorline.metrics.metrics import Metrics
from anchorline.server.state import ServerState
from anchorline.server.switch import ModelSwitch
from anchorline.server.switching_app import build_switching_app
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
    metrics = Metrics()
    switch = ModelSwitch(source=source, metrics=metrics, queue=queue, max_passes=16, clock=lambda: seconds[-1])
    app = build_switching_app(switch, config, metrics=metrics, new_id=lambda: "id", created=CREATED, ping_seconds=0.01)
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


async def until(holds: Any) -> None:
    """Let other tasks run until that is so."""
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0)
