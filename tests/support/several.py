"""A whole server with several models on loopback, joined as the command line joins it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from anchorline.cli.hosting import Settings
from anchorline.cli.models import named_models
from anchorline.cli.several import ModelHost
from anchorline.config import ContextConfig, DiskConfig, EngineConfig, ModelConfig, ServerConfig
from anchorline.server.state import new_id
from anchorline.server.switch import ModelSwitch
from anchorline.server.switching_app import build_switching_app
from tests.server.support import listening


def settings_of(
    models: Sequence[str], engine: EngineConfig, *, directory: Path | None = None, disk: Path | None = None
) -> Settings:
    """Those of a server that computes on one thread."""
    common = ModelConfig()
    return Settings(
        model=common,
        models=named_models(models, None if directory is None else str(directory), common),
        context=ContextConfig(context_tokens=4096, threads=1, threads_batch=1),
        engine=engine,
        disk=DiskConfig(cache_disk=None if disk is None else str(disk), cache_disk_required=disk is not None),
        server=ServerConfig(port=0),
    )


@contextmanager
def serving_several(
    models: Sequence[str],
    engine: EngineConfig,
    *,
    directory: Path | None = None,
    disk: Path | None = None,
) -> Iterator[httpx.Client]:
    """A client of a server that computes on one thread and ends with the block."""
    settings = settings_of(models, engine, directory=directory, disk=disk)
    server, source = settings.server, ModelHost(settings)
    metrics = source.shared.metrics
    switch = ModelSwitch(
        source=source, metrics=metrics, queue=engine.queue, max_passes=engine.max_passes, clock=time.monotonic
    )
    metrics.watch_engine(switch.stats)
    app = build_switching_app(switch, server, metrics=metrics, new_id=new_id, created=int(time.time()))
    try:
        with listening(app, server) as url, httpx.Client(base_url=url, timeout=120) as client:
            yield client
    finally:
        switch.close(timeout_seconds=10)


class Conversation:
    """One with a model, turn by turn."""

    def __init__(self, client: httpx.Client, model: str, *, words: int = 40) -> None:
        self._client = client
        self._model = model
        self._words = words
        self.messages: list[dict[str, str]] = [{"role": "system", "content": f"You help with {model}. " * 20}]

    def turn(self) -> dict[str, Any]:
        """The timings of the next turn, and its ``prompt_tokens``."""
        self.messages.append({"role": "user", "content": f"{len(self.messages)}: " + "why is that? " * self._words})
        body = {"model": self._model, "messages": self.messages, "max_tokens": 8, "temperature": 0}
        response = self._client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        reply = response.json()
        self.messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        timings: dict[str, Any] = reply["timings"]
        return {**timings, "prompt_tokens": reply["usage"]["prompt_tokens"]}
