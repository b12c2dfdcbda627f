"""Other servers beside us: the same model, the same prompts, their own idea of a cache."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from anchorline.bench.calls import PeerAnswer
from anchorline.bench.client import CallFailed, Client, told_as
from anchorline.bench.oracle import Tokens, as_tokens
from anchorline.bench.process import ServerProcess
from anchorline.bench.reported import Completion, TierTimings
from anchorline.errors import ConfigError

UVICORN_LISTENING = re.compile(r"Uvicorn running on (http://\S+)")
HOST_SCRIPT = Path(__file__).with_name("llama_server_host.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What the peer is told; everything else is its default."""

    model: Path
    context_tokens: int
    parallel: int = 4
    threads: int = 1
    gpu_layers: int = 0
    flash_attention: str = "auto"
    """``on``, ``off`` or ``auto``."""
    chat: bool = False
    """Whether it answers chats, too, by the model's own template; one that it cannot parse ends it at the start."""
    unified: bool = True
    """Whether all slots share one context, as they do by default; else each has its own share of it."""
    cache_ram_mib: int | None = None
    """Of its RAM cache; None leaves it at its default of 8192, -1 takes the limit away."""
    context_checkpoints: int | None = None
    """States kept of each slot of a stateful model; None leaves it at its default of 32."""
    checkpoint_step_tokens: int | None = None
    """Tokens between two of them at least; None leaves it at its default of 8192."""


class LlamaServer:
    """llama-server from the package ``xllamacpp``, in a process of ``python`` (see ``check_python``); close it."""

    name = "llama-server"
    package = "xllamacpp"

    def __init__(self, settings: PeerSettings, *, python: str) -> None:
        arguments = {**asdict(settings), "model": str(settings.model)}
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        self._process = ServerProcess([python, str(HOST_SCRIPT), json.dumps(arguments)], environment=environment)
        try:
            self._client = Client(self._process.wait_until_listening(), reuses_connections=False)
        except BaseException:
            self._process.stop()
            raise

    @property
    def url(self) -> str:
        return self._client.url

    def complete(self, prompt: Tokens, *, max_tokens: int) -> PeerAnswer:
        """Continue ``prompt`` greedily; raises CallFailed."""
        body = {
            "prompt": prompt.tolist(),
            "n_predict": max_tokens,
            "temperature": 0,
            "cache_prompt": True,
            "return_tokens": True,
            "stream": True,
        }
        reply: list[int] = []
        timings: dict[str, Any] | None = None
        ttft_ms: float | None = None
        started = time.perf_counter()
        for event in self._client.events("/completion", body):
            if ttft_ms is None:
                ttft_ms = (time.perf_counter() - started) * 1000
            told = told_as(Completion, event, what="an event of llama-server")
            reply.extend(told.tokens or ())
            timings = told.timings or timings
        if timings is None:
            raise CallFailed("llama-server ended its answer early", status=200)
        timed = told_as(TierTimings, timings, what="the timings of llama-server")
        return PeerAnswer(
            prompt_tokens=timed.prompt_n + timed.cache_n,
            prefilled_tokens=timed.prompt_n,
            reply_tokens=as_tokens(reply),
            ttft_ms=ttft_ms,
            prefill_ms=timed.prompt_ms,
        )

    def close(self) -> None:
        self._client.close()
        self._process.stop()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LlamaCppPythonServer:
    """The server that comes with llama-cpp-python, in a process of ``python``; close it.

    It takes no token ids and reports no cached tokens: it gets the text of each prompt, and only times are measured.
    """

    name = "llama-cpp-python"
    package = "llama_cpp.server.app"

    def __init__(self, settings: PeerSettings, *, python: str) -> None:
        options = {
            "model": settings.model,
            "n_ctx": settings.context_tokens,
            "n_threads": settings.threads,
            "n_threads_batch": settings.threads,
            "n_gpu_layers": settings.gpu_layers,
            "flash_attn": settings.flash_attention == "on",
            # Else a call would end the one before it.
            "interrupt_requests": False,
            "port": 0,
        }
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self._process = ServerProcess(
            [python, "-m", "llama_cpp.server", *flags],
            environment={**os.environ, "OMP_WAIT_POLICY": "passive"},
            listening=UVICORN_LISTENING,
        )
        try:
            self._client = Client(self._process.wait_until_listening())
        except BaseException:
            self._process.stop()
            raise

    def complete(self, text: str, *, max_tokens: int) -> float:
        """Continue ``text`` greedily; milliseconds to the first token. Raises CallFailed."""
        body = {"prompt": text, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        ttft_ms: float | None = None
        started = time.perf_counter()
        for _ in self._client.events("/v1/completions", body):
            if ttft_ms is None:
                ttft_ms = (time.perf_counter() - started) * 1000
        if ttft_ms is None:
            raise CallFailed("llama-cpp-python gave no token", status=200)
        return ttft_ms

    def close(self) -> None:
        self._client.close()
        self._process.stop()


def check_python(python: str) -> None:
    """Raise ConfigError unless ``python`` can import xllamacpp."""
    if not can_import(python, LlamaServer.package):
        raise ConfigError(
            f"--peer llama-server needs the package xllamacpp, which {python} cannot import; "
            f"install it with pip install 'anchorline[peers]' or name another Python with --peer-python"
        )


def can_import(python: str, module: str) -> bool:
    """Whether ``python`` has ``module`` and all that it needs. Raises ConfigError when there is no such Python."""
    try:
        done = subprocess.run([python, "-c", f"import {module}"], check=False, capture_output=True)
    except OSError as error:
        raise ConfigError(f"--peer-python {python}: {error}") from error
    return done.returncode == 0
