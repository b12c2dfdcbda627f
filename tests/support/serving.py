"""A whole server on loopback, joined as the command line joins it, over a model of the test session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from anchorline.cli.hosting import Settings, Shared, reply_format_of, sequences_for, state_of, turn_memo
from anchorline.config import ContextConfig, DiskConfig, EngineConfig, ModelConfig, ServerConfig
from anchorline.engine.engine import Engine
from anchorline.engine.stream import Clock
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from anchorline.prompt.select import select_template
from anchorline.script.rules import Rule
from anchorline.server.app import build_app
from anchorline.server.state import ServerState
from tests.server.support import listening


@dataclass(frozen=True, slots=True)
class LiveServer:
    url: str
    engine: Engine


@contextmanager
def serving(
    model: Model,
    engine_config: EngineConfig,
    *,
    context_tokens: int = 8192,
    server: ServerConfig | None = None,
    rules: Sequence[Rule] | None = None,
    adapt: Callable[[ServerState], ServerState] = lambda state: state,
    clock: Clock = time.monotonic,
    seal: bool = False,
) -> Iterator[LiveServer]:
    """A live server on ``model``; it computes on one thread and ends with the block.

    ``adapt`` may put something of the test's in the place of a part; ``clock`` is the engine's. Turns are sealed
    only with ``seal``: what is restored does not depend on when the next request comes.
    """
    engine_config = replace(engine_config, seal=seal)
    settings = Settings(
        model=ModelConfig(model=model.info.name),
        context=ContextConfig(context_tokens=context_tokens, threads=1, threads_batch=1),
        engine=engine_config,
        disk=DiskConfig(),
        server=server or ServerConfig(port=0),
    )
    selected = select_template(settings.server.chat_template, model.info, model.tokenizer)
    runtime = LlamaRuntime(model, settings.context, sequences=sequences_for(engine_config), owns_model=False)
    engine = Engine(runtime, engine_config, clock=clock)
    engine.start()
    try:
        reply_format = reply_format_of(settings.server, selected, model.tokenizer)
        shared = Shared.of(settings.server.limits)
        shared.metrics.watch_engine(engine.stats)
        shared.metrics.count_engine(engine.stats)
        state = state_of(
            settings,
            model,
            selected,
            engine,
            reply_format=reply_format,
            shared=shared,
            turns=turn_memo(settings),
            rules=rules,
        )
        with listening(build_app(adapt(state)), settings.server) as url:
            yield LiveServer(url, engine)
    finally:
        engine.close()
