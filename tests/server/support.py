"""Servers for the tests: one called in process, one listening on loopback."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
from starlette.applications import Starlette

from anchorline.api.models import Served
from anchorline.api.responses_store import ResponseStore
from anchorline.config import ServerConfig
from anchorline.constraint.compiler import ConstraintCompiler
from anchorline.constraint.vocabulary import Vocabulary
from anchorline.engine.stats import EngineStats
from anchorline.llama.interface import ModelInfo
from anchorline.metrics.metrics import Metrics
from anchorline.server.app import build_app
from anchorline.server.explanations import Explanations
from anchorline.server.serve import make_server, open_socket, url_of
from anchorline.server.state import Prompts, ServerState
from anchorline.server.workers import Workers
from tests.server.standin import ByteTokenizer, StandInEngine, StandInPrompts
from tests.server.tinyformat import TinyFormat

CREATED = 1_700_000_000

INFO = ModelInfo(
    name="bytes",
    description="a stand-in",
    architecture="llama",
    parameters=1000,
    size_bytes=2000,
    train_context_tokens=8192,
    vocab_size=259,
    embedding_length=64,
    chat_template="{{ messages }}",
    named_templates={},
    metadata={},
    build="test build",
)


def make_state(
    engine: StandInEngine,
    *,
    config: ServerConfig | None = None,
    tokenizer: ByteTokenizer | None = None,
    info: ModelInfo = INFO,
    prompts: Prompts | None = None,
    ping_seconds: float = 60.0,
) -> ServerState:
    """A state around ``engine`` with fixed time and counted ids."""
    tokenizer = tokenizer or ByteTokenizer()
    counter, call_counter = itertools.count(1), itertools.count(1)
    config = config or ServerConfig(port=0)
    metrics = Metrics()
    metrics.watch_engine(engine.stats)
    snapshots = itertools.chain([EngineStats.of_none()], (engine.stats() for _ in itertools.count()))
    metrics.count_engine(lambda: next(snapshots))
    served = Served(
        name=config.model_alias or info.name,
        info=info,
        context_tokens=engine.context_tokens,
        parallel=engine.parallel,
        chat_template="{{ messages }}",
        bos_text="",
        eos_text="<|im_end|>",
        created=CREATED,
    )
    return ServerState(
        config=config,
        engine=engine,
        prompts=prompts or StandInPrompts(tokenizer),
        tokenizer=tokenizer,
        served=served,
        constraints=ConstraintCompiler(
            Vocabulary(tokenizer, end_of_generation=tokenizer.end_of_generation), config.limits
        ),
        metrics=metrics,
        reply_format=TinyFormat(),
        workers=Workers(threads=config.limits.preparing, waiting=config.limits.preparing_queue),
        turns=None,
        explanations=Explanations(tokenizer, calls=deque(maxlen=config.limits.recent_requests)),
        responses=ResponseStore(entries=config.limits.stored_responses, size_bytes=config.limits.stored_bytes),
        wall_clock=lambda: float(CREATED),
        monotonic=lambda: 0.0,
        new_id=lambda: f"{next(counter):024d}",
        new_call_id=lambda: f"call{next(call_counter):05d}",
        ping_seconds=ping_seconds,
    )


@dataclass(frozen=True)
class Site:
    """A running application and what stands behind it."""

    app: Starlette
    state: ServerState
    engine: StandInEngine

    def client(self, *, base_url: str = "http://127.0.0.1", **headers: str) -> httpx.AsyncClient:
        """A client that calls the application in process."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url=base_url, headers=headers)


@contextlib.contextmanager
def site(
    *,
    config: ServerConfig | None = None,
    tokenizer: ByteTokenizer | None = None,
    info: ModelInfo = INFO,
    prompts: Prompts | None = None,
    ping_seconds: float = 60.0,
) -> Iterator[Site]:
    """An application over a stand-in engine of its own."""
    engine = StandInEngine()
    engine.start()
    try:
        state = make_state(
            engine, config=config, tokenizer=tokenizer, info=info, prompts=prompts, ping_seconds=ping_seconds
        )
        yield Site(build_app(state), state, engine)
    finally:
        engine.close()


@contextlib.contextmanager
def listening(app: Starlette, config: ServerConfig) -> Iterator[str]:
    """Serve ``app`` on a free loopback port in a thread; gives its URL."""
    listener = open_socket(config)
    server = make_server(app, config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        server.hurry()
        thread.join(timeout=30)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


def free_port() -> int:
    """A port of loopback on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
