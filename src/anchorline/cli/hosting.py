"""One model, from its file to what the routes work with, and back."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from anchorline import machine
from anchorline.api.explanation_wire import ExplainedCall
from anchorline.api.models import Served
from anchorline.api.responses_store import ResponseStore
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cli.disk import open_store
from anchorline.cli.models import NamedModel, name_of
from anchorline.config import ContextConfig, DiskConfig, EngineConfig, ModelConfig, ServerConfig
from anchorline.constraint.compiler import ConstraintCompiler
from anchorline.constraint.vocabulary import Vocabulary
from anchorline.engine.caches import make_cache
from anchorline.engine.engine import Engine
from anchorline.engine.stream import Clock
from anchorline.errors import ConfigError, ModelError
from anchorline.limits import Limits
from anchorline.llama.context import with_spare_ids
from anchorline.llama.interface import Runtime, Tokenizer
from anchorline.llama.model import Model, load_model, model_path
from anchorline.llama.model_file import stamp
from anchorline.llama.runtime import LlamaRuntime
from anchorline.llama.tokenizer import LlamaTokenizer
from anchorline.metrics.metrics import Metrics
from anchorline.output.format import ReplyFormat
from anchorline.output.formats import FORMATS, detect_format
from anchorline.prompt.bounds import Budget, bounded
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.rewrites import Rewrites
from anchorline.prompt.select import SelectedTemplate, select_template, template_tokens
from anchorline.prompt.turns import TurnMemo
from anchorline.script.rules import Rule
from anchorline.script.script import Script
from anchorline.server.explanations import Explanations
from anchorline.server.state import ServerState
from anchorline.server.warming import Warming, WarmOrder
from anchorline.server.workers import Workers

log = logging.getLogger("anchorline.cli")

WORKERS_SECONDS = 5.0
"""How long requests that are just being rendered or tokenised are waited for at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything ``serve`` was told, with the values that depend on the machine filled in."""

    model: ModelConfig
    """The model, or what all of several have in common."""
    models: Sequence[NamedModel] = ()
    """Several that take turns; none where there is one model."""
    context: ContextConfig
    engine: EngineConfig
    disk: DiskConfig
    server: ServerConfig


def sequences_for(config: EngineConfig) -> int:
    """Sequence ids that the engine needs: one per stream and one per finished sequence that is kept."""
    if config.exact:
        return 1
    return config.parallel + (config.resident_idle if config.cache else 0)


def _make_runtime(model: Model, settings: Settings) -> LlamaRuntime:
    """With ids to spare, for finished sequences that nothing else keeps. Raises ConfigError and ModelError."""
    sequences = sequences_for(settings.engine)
    if settings.engine.cache and not settings.engine.exact:
        sequences = with_spare_ids(model, sequences)
    return LlamaRuntime(model, settings.context, sequences=sequences, owns_model=False)


def reply_format_of(config: ServerConfig, selected: SelectedTemplate, tokenizer: Tokenizer) -> ReplyFormat:
    """The format that --tool-format names, or the one that the template for tools shows. Raises ConfigError."""
    if config.tool_format is None:
        return detect_format(selected.tool_template.source, tokenizer.control_tokens.keys())
    if config.tool_format not in FORMATS:
        raise ConfigError(f"--tool-format: {config.tool_format!r} is not known; known are {', '.join(sorted(FORMATS))}")
    return FORMATS[config.tool_format]


def turn_memo(settings: Settings) -> TurnMemo | None:
    """Without a cache there is no prefix to keep, and exact prompts must not depend on what was generated before."""
    limits, engine = settings.server.limits, settings.engine
    if not engine.cache or engine.exact or not limits.turns:
        return None
    return TurnMemo(limit_entries=limits.turns, limit_bytes=limits.turn_bytes)


def rewrites_of(config: ServerConfig) -> Rewrites:
    """What of a request is rendered otherwise than it was sent."""
    return Rewrites(
        float_volatile=config.float_volatile,
        canonical_tools=config.canonical_tools,
        pin_date=config.pin_date,
        memory_bytes=config.limits.rewrite_bytes,
    )


def sealed_turns(config: EngineConfig, turns: TurnMemo | None) -> int:
    """Conversations whose last turn may wait to be sealed: about as many as stay resident."""
    if not config.seal:
        return 0
    if turns is None:
        log.info("turns are not sealed: that needs the cache and --max-turns, and does not go with --exact")
        return 0
    return max(1, config.resident_idle)


@dataclass(frozen=True, slots=True)
class Shared:
    """What belongs to a server, whichever of its models is loaded."""

    metrics: Metrics
    responses: ResponseStore
    calls: deque[ExplainedCall]
    """The latest ones."""

    @classmethod
    def of(cls, limits: Limits) -> Shared:
        """As a server begins."""
        return cls(
            metrics=Metrics(),
            responses=ResponseStore(entries=limits.stored_responses, size_bytes=limits.stored_bytes),
            calls=deque(maxlen=limits.recent_requests),
        )


def state_of(
    settings: Settings,
    model: Model,
    selected: SelectedTemplate,
    engine: Engine,
    *,
    reply_format: ReplyFormat,
    shared: Shared,
    turns: TurnMemo | None,
    rules: Sequence[Rule] | None = None,
    orders: Sequence[WarmOrder] = (),
) -> ServerState:
    """What the routes work with; ``rules`` are those of --script, ``orders`` those of --warm."""
    tokenizer = model.tokenizer
    tokens = template_tokens(tokenizer)
    prompts = PromptBuilder(
        tokenizer,
        selected,
        clock=datetime.now,
        all_cuts=settings.engine.exact,
        reply_format=reply_format,
        turns=turns,
        rewrites=rewrites_of(settings.server),
    )
    return ServerState(
        config=settings.server,
        engine=engine,
        prompts=prompts,
        tokenizer=tokenizer,
        served=Served(
            name=settings.server.model_alias or model.info.name,
            info=model.info,
            context_tokens=engine.context_tokens,
            parallel=engine.parallel,
            chat_template=selected.template.source,
            bos_text=tokens.bos,
            eos_text=tokens.eos,
            created=int(time.time()),
        ),
        constraints=ConstraintCompiler(
            Vocabulary(tokenizer, end_of_generation=tokenizer.end_of_generation), settings.server.limits
        ),
        metrics=shared.metrics,
        reply_format=reply_format,
        turns=turns,
        sealed_turns=sealed_turns(settings.engine, turns),
        workers=Workers(threads=settings.server.limits.preparing, waiting=settings.server.limits.preparing_queue),
        responses=shared.responses,
        explanations=Explanations(tokenizer, calls=shared.calls),
        warming=Warming(orders),
        script=None if rules is None else _script(rules, prompts, tokenizer),
    )


def _script(rules: Sequence[Rule], prompts: PromptBuilder, tokenizer: LlamaTokenizer) -> Script:
    assert tokenizer.eos is not None, "test models have one"
    return Script(rules, prompts, end=tokenizer.eos, end_of_generation=tokenizer.end_of_generation)


class Kept(Protocol):
    """What is remembered with a model, which may have been loaded before."""

    def open_cache(
        self, runtime: LlamaRuntime, config: EngineConfig, face: Runtime, clock: Clock
    ) -> PrefixCache | None:
        """The cache of an engine over ``runtime``; the rest is as ``OpenCache`` has it."""

    def turns(self, runtime: LlamaRuntime) -> TurnMemo | None:
        """The generated turns that prompts may know again."""


@dataclass(frozen=True, slots=True)
class KeptOnce:
    """Where a model is loaded once, nothing was there before."""

    settings: Settings

    def open_cache(
        self, runtime: LlamaRuntime, config: EngineConfig, face: Runtime, clock: Clock
    ) -> PrefixCache | None:
        return make_cache(config, face, clock)

    def turns(self, runtime: LlamaRuntime) -> TurnMemo | None:
        return turn_memo(self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """A model that is loaded, with all that serves it."""

    model: Model
    runtime: LlamaRuntime
    engine: Engine
    selected: SelectedTemplate
    reply_format: ReplyFormat
    state: ServerState

    def free(self) -> bool:
        """Free the model, whose engine has ended; False, and nothing is freed, while a thread still uses it."""
        if not self.state.workers.close(timeout_seconds=WORKERS_SECONDS):
            return False
        self.runtime.close()
        self.model.close()
        return True


def _files(config: ModelConfig) -> list[Path]:
    """The model's, by the first one where it is split, and those of its adapters. Raises ModelError."""
    path = model_path(config)
    return [*([] if path is None else [path]), *(Path(adapter).expanduser() for adapter, _scale in config.lora)]


def host(
    settings: Settings,
    config: ModelConfig,
    *,
    shared: Shared,
    kept: Kept,
    rules: Sequence[Rule] | None = None,
    orders: Sequence[WarmOrder] = (),
) -> Hosted:
    """Load a model and start its engine; ``kept`` is what of it outlives it.

    Raises ConfigError and ModelError, and then leaves nothing behind.
    """
    files = _files(config)
    before = [stamp(file) for file in files]
    log.info("loading %s", name_of(config.model))
    with ExitStack() as loaded:
        model = load_model(config)
        loaded.callback(model.close)
        with bounded(Budget(settings.server.limits)):
            selected = select_template(settings.server.chat_template, model.info, model.tokenizer)
        for name in selected.foreign:
            log.warning(
                "the turn marks of the template '%s' are no control tokens of this model: it reads them as text, "
                "and may not end its replies (--chat-template takes another)",
                name,
            )
        reply_format = reply_format_of(settings.server, selected, model.tokenizer)
        runtime = _make_runtime(model, settings)
        loaded.callback(runtime.close)
        engine = Engine(
            runtime,
            settings.engine,
            clock=time.monotonic,
            read_memory=machine.read_memory,
            open_store=partial(open_store, settings.disk, config, settings.context, settings.engine, runtime),
            open_cache=partial(kept.open_cache, runtime),
        )
        loaded.callback(engine.close)
        state = state_of(
            settings,
            model,
            selected,
            engine,
            reply_format=reply_format,
            shared=shared,
            turns=kept.turns(runtime),
            rules=rules,
            orders=orders,
        )
        # What is kept of the model is known by its files, which were read for that after its weights were.
        for file, was in zip(files, before, strict=True):
            if stamp(file) != was:
                raise ModelError(f"{file} was changed while it was loaded")
        shared.metrics.count_engine(engine.stats)
        engine.start()
        loaded.pop_all()  # from here on nothing may be freed before the engine's thread has ended
    return Hosted(
        model=model, runtime=runtime, engine=engine, selected=selected, reply_format=reply_format, state=state
    )
