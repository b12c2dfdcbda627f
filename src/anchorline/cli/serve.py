"""``anchorline serve``: the parts are joined here and nowhere else."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from click.core import ParameterSource

from anchorline import machine
from anchorline.api.models import Served
from anchorline.api.responses_store import ResponseStore
from anchorline.cli.banner import announce
from anchorline.cli.disk import fill_in, open_store
from anchorline.cli.logs import FORMATS as LOG_FORMATS
from anchorline.cli.logs import LEVELS, set_up_logging
from anchorline.cli.options import SettingOption, build, options_of
from anchorline.cli.signals import end_at_once_on_signals, leave_at_once
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.values import format_size
from anchorline.cli.warm_file import read_prefixes
from anchorline.config import ContextConfig, DiskConfig, EngineConfig, ModelConfig, ServerConfig
from anchorline.constraint.compiler import ConstraintCompiler
from anchorline.constraint.vocabulary import Vocabulary
from anchorline.engine.engine import Engine
from anchorline.errors import ConfigError
from anchorline.llama.interface import Tokenizer
from anchorline.llama.model import TEST_PREFIX, Model, load_model
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
from anchorline.script.rules import Rule, read_rules
from anchorline.script.script import Script
from anchorline.server.anchors import warm
from anchorline.server.app import build_app
from anchorline.server.caller import tenant_with
from anchorline.server.explanations import Explanations
from anchorline.server.serve import open_socket, url_of
from anchorline.server.serve import serve as serve_app
from anchorline.server.state import ServerState
from anchorline.server.warming import Warming, WarmOrder
from anchorline.server.workers import Workers

log = logging.getLogger("anchorline.cli")

SETTINGS: tuple[SettingOption, ...] = (
    *options_of(ServerConfig, section="Server"),
    *options_of(EngineConfig, section="Engine and cache"),
    *options_of(DiskConfig, section="Disk tier"),
    *options_of(ContextConfig, section="Context"),
    *options_of(ModelConfig, section="Model"),
)
MODEL_NAMED = SettingOption(
    "model_named", "--model", "-m", section="Model", metavar="MODEL", help="The same as MODEL without a flag."
)
LOGGING = (
    SettingOption(
        "--log-level",
        section="Logging",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        help="Least level that is logged.",
    ),
    SettingOption(
        "--log-format",
        section="Logging",
        type=click.Choice(LOG_FORMATS),
        default="text",
        show_default=True,
        help="Log as lines of text or as one JSON object per line.",
    ),
)

WORKERS_SECONDS = 5.0
"""How long requests that are just being rendered or tokenised are waited for at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything ``serve`` was told, with the values that depend on the machine filled in."""

    model: ModelConfig
    context: ContextConfig
    engine: EngineConfig
    disk: DiskConfig
    server: ServerConfig


def settings_from(values: dict[str, Any]) -> Settings:
    """Configs from parsed options; raises ConfigError naming the flag."""
    values = dict(values)
    if values["cache_ram_bytes"] is None:
        values["cache_ram_bytes"] = machine.default_cache_bytes()
    pin_budget = values["pin_budget_bytes"]
    if isinstance(pin_budget, float):
        values["pin_budget_bytes"] = int(pin_budget * values["cache_ram_bytes"])
    fill_in(values, os.environ)
    values["threads"] = values["threads"] or machine.physical_cores()
    values["threads_batch"] = values["threads_batch"] or values["threads"]
    engine = build(EngineConfig, values)
    engine.validate()
    server = build(ServerConfig, values)
    server.validate()
    if server.warm and not engine.cache:
        raise ConfigError("--warm needs the cache that --no-cache turns off")
    if engine.exact and (server.float_volatile or server.pin_date):
        flag = "--float-volatile" if server.float_volatile else "--pin-date"
        raise ConfigError(f"{flag} makes prompts depend on what was asked before, which --exact rules out")
    model = build(ModelConfig, values)
    if server.script is not None:
        if not model.model.startswith(TEST_PREFIX):
            raise ConfigError(f"--script needs a {TEST_PREFIX}ARCH model, not {model.model}")
        model = replace(model, test_spelling=True)
    return Settings(
        model=model,
        context=build(ContextConfig, values),
        engine=engine,
        disk=build(DiskConfig, values),
        server=server,
    )


def run(settings: Settings) -> NoReturn:
    """Load, serve until SIGTERM or SIGINT, free everything, and end the process with exit code 0.

    While it loads, a signal ends the process as it ends any other.
    """
    rules = None if settings.server.script is None else read_rules(settings.server.script)
    orders = warm_orders(settings.server)
    end_at_once_on_signals()  # Python's own handler would wait for llama.cpp to have loaded
    machine.allow_open_files(connections=settings.server.limits.connections)
    warn_of_large_cache(settings.engine, ram_bytes=machine.total_ram_bytes())
    # Bound before the model is loaded: a busy port must not cost a minute of loading.
    with open_socket(settings.server) as listener, ExitStack() as loaded:
        model = load_model(settings.model)
        loaded.callback(model.close)
        with bounded(Budget(settings.server.limits)):
            selected = select_template(
                settings.server.chat_template, model.info, tokens=template_tokens(model.tokenizer)
            )
        reply_format = reply_format_of(settings.server, selected, model.tokenizer)
        runtime = LlamaRuntime(model, settings.context, sequences=sequences_for(settings.engine), owns_model=False)
        loaded.callback(runtime.close)
        engine = Engine(
            runtime,
            settings.engine,
            clock=time.monotonic,
            read_memory=machine.read_memory,
            open_store=partial(open_store, settings.disk, settings.model, settings.context, settings.engine, runtime),
        )
        engine.start()
        loaded.pop_all()  # from here on nothing may be freed before the engine's thread has ended
        state = state_of(settings, model, selected, engine, reply_format=reply_format, rules=rules, orders=orders)
        facts = facts_of(settings, model, selected, engine, reply_format=reply_format, url=url_of(listener))
        try:
            serve_app(
                build_app(state),
                settings.server,
                listener=listener,
                ready=lambda: announce(facts),
                beside=lambda: warm(state),
            )
        finally:
            engine.close(flush_seconds=settings.server.shutdown_seconds)
        # Otherwise a thread still uses the model, and nothing ends it.
        if state.workers.close(timeout_seconds=WORKERS_SECONDS):
            runtime.close()
            model.close()
    leave_at_once()


def warm_orders(config: ServerConfig) -> list[WarmOrder]:
    """Anchors that the files of --warm ask for, for each tenant that there may be.

    Warns of calls that are left out. Raises ConfigError.
    """
    tenants = [tenant_with(key.encode()) for key in dict.fromkeys(config.api_keys)] or [tenant_with(b"")]
    orders: dict[tuple[bytes, str], WarmOrder] = {}
    for path in config.warm:
        try:
            found = read_prefixes(Path(path), limits=config.limits)
        except ConfigError as error:
            raise ConfigError(f"--warm: {error}") from error
        for line in found.left_out:
            log.warning("--warm: %s", line)
        for prefix, tenant in product(found.prefixes, tenants):
            order = WarmOrder(body=msgspec.json.encode(prefix.anchor), tenant=tenant, origin=prefix.origin)
            orders.setdefault((msgspec.json.encode(prefix.body), tenant), order)
    return list(orders.values())


def warn_of_large_cache(config: EngineConfig, *, ram_bytes: int | None) -> None:
    """Warn when the cache may grow beyond the RAM that this process can ever have."""
    if config.cache and ram_bytes is not None and config.cache_ram_bytes > ram_bytes:
        log.warning(
            "--cache-ram %s is more than the %s of RAM that this machine, or its control group, has",
            format_size(config.cache_ram_bytes),
            format_size(ram_bytes),
        )


def sequences_for(config: EngineConfig) -> int:
    """Sequence ids that the engine needs: one per stream and one per finished sequence that is kept."""
    if config.exact:
        return 1
    return config.parallel + (config.resident_idle if config.cache else 0)


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


def state_of(
    settings: Settings,
    model: Model,
    selected: SelectedTemplate,
    engine: Engine,
    *,
    reply_format: ReplyFormat,
    rules: Sequence[Rule] | None = None,
    orders: Sequence[WarmOrder] = (),
) -> ServerState:
    """What the routes work with; ``rules`` are those of --script, ``orders`` those of --warm."""
    metrics = Metrics()
    metrics.watch_engine(engine.stats)
    tokenizer = model.tokenizer
    tokens = template_tokens(tokenizer)
    turns = turn_memo(settings)
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
        metrics=metrics,
        reply_format=reply_format,
        turns=turns,
        sealed_turns=sealed_turns(settings.engine, turns),
        workers=Workers(threads=settings.server.limits.preparing, waiting=settings.server.limits.preparing_queue),
        responses=ResponseStore(
            entries=settings.server.limits.stored_responses, size_bytes=settings.server.limits.stored_bytes
        ),
        explanations=Explanations(tokenizer, kept=settings.server.limits.recent_requests),
        warming=Warming(orders),
        script=None if rules is None else _script(rules, prompts, tokenizer),
    )


def _script(rules: Sequence[Rule], prompts: PromptBuilder, tokenizer: LlamaTokenizer) -> Script:
    assert tokenizer.eos is not None, "test models have one"
    return Script(rules, prompts, end=tokenizer.eos, end_of_generation=tokenizer.end_of_generation)


def facts_of(
    settings: Settings,
    model: Model,
    selected: SelectedTemplate,
    engine: Engine,
    *,
    reply_format: ReplyFormat,
    url: str,
) -> dict[str, str]:
    """What the banner shows."""
    context, info = settings.context, model.info
    cache = format_size(settings.engine.cache_ram_bytes) if settings.engine.cache else "off"
    if engine.stats().cache_fault is not None:
        cache = "off: the self-test failed"
    mode = "exact, one stream" if settings.engine.exact else f"{engine.parallel} streams"
    return {
        "model": f"{info.name} ({info.description}, {format_size(info.size_bytes)})",
        "memory": f"{engine.capabilities.kind}, KV types {context.type_k}/{context.type_v}",
        "context": f"{engine.context_tokens} tokens, {mode}",
        "template": f"{selected.name} from {selected.origin}",
        "tool format": reply_format.name,
        "cache RAM": cache,
        "cache disk": _disk_fact(settings, engine),
        "threads": f"{context.threads}",
        "url": url,
    }


def _disk_fact(settings: Settings, engine: Engine) -> str:
    if not engine.has_disk:
        return "off"
    return f"{settings.disk.cache_disk}, {format_size(settings.disk.cache_disk_bytes)}"


class _ServeCommand(SuggestingCommand):
    """Takes the model as an argument or, as llama-server does, behind a flag."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        named = ctx.params.pop("model_named")
        if named is not None:
            if ctx.get_parameter_source("model") is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--model: the model is {ctx.params['model']} already", ctx=ctx)
            ctx.params["model"] = named
        return rest


def _serve(*, log_level: str, log_format: str, **values: Any) -> None:
    """Serve a model to clients of OpenAI and Anthropic.

    MODEL is the path of a GGUF file, 'smollm2' (the default), or 'test:ARCH' (random weights).
    """
    set_up_logging(log_level, log_format)
    run(settings_from(values))


serve = _ServeCommand(
    "serve",
    callback=_serve,
    help=_serve.__doc__,
    params=[click.Argument(["model"], default=ModelConfig().model), *SETTINGS, MODEL_NAMED, *LOGGING],
)
