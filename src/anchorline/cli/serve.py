"""``anchorline serve``: what it was told, and the server for one model or several."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from anchorline import machine
from anchorline.cli.banner import announce
from anchorline.cli.disk import fill_in
from anchorline.cli.hosting import Hosted, KeptOnce, Settings, Shared, host
from anchorline.cli.logs import FORMATS as LOG_FORMATS
from anchorline.cli.logs import LEVELS, set_up_logging
from anchorline.cli.models import named_models
from anchorline.cli.options import SettingOption, build, options_of
from anchorline.cli.several import ModelHost
from anchorline.cli.signals import end_at_once_on_signals, leave_at_once
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.values import format_size
from anchorline.cli.warm_file import read_prefixes
from anchorline.config import ContextConfig, DiskConfig, EngineConfig, ModelConfig, ServerConfig
from anchorline.errors import ConfigError
from anchorline.llama.model import TEST_PREFIX
from anchorline.script.rules import Rule, read_rules
from anchorline.server.anchors import warm
from anchorline.server.app import build_app
from anchorline.server.caller import tenant_with
from anchorline.server.serve import open_socket, url_of
from anchorline.server.serve import serve as serve_app
from anchorline.server.state import new_id
from anchorline.server.switch import ModelSwitch
from anchorline.server.switching_app import build_switching_app
from anchorline.server.warming import WarmOrder

log = logging.getLogger("anchorline.cli")

SETTINGS: tuple[SettingOption, ...] = (
    *options_of(ServerConfig, section="Server"),
    *options_of(EngineConfig, section="Engine and cache"),
    *options_of(DiskConfig, section="Disk tier"),
    *options_of(ContextConfig, section="Context"),
    *options_of(ModelConfig, section="Model"),
)
MODEL_NAMED = SettingOption(
    "models_named",
    "--model",
    "-m",
    section="Model",
    metavar="MODEL",
    multiple=True,
    help="The same as MODEL without a flag; may be given more than once.",
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
    if server.models_max > 1:
        raise ConfigError(f"--models-max {server.models_max}: no more than 1 model is loaded at a time")
    if server.warm and not engine.cache:
        raise ConfigError("--warm needs the cache that --no-cache turns off")
    if engine.exact and (server.float_volatile or server.pin_date):
        flag = "--float-volatile" if server.float_volatile else "--pin-date"
        raise ConfigError(f"{flag} makes prompts depend on what was asked before, which --exact rules out")
    model = build(ModelConfig, values)
    if server.script is not None:
        model = replace(model, test_spelling=True)
    several = len(values["models"]) > 1 or server.models_directory is not None
    models = named_models(values["models"], server.models_directory, model) if several else []
    if several:
        check_several(server, model)
    for scripted in [named.config for named in models] or [model]:
        if server.script is not None and not scripted.model.startswith(TEST_PREFIX):
            raise ConfigError(f"--script needs a {TEST_PREFIX}ARCH model, not {scripted.model}")
    return Settings(
        model=model,
        models=models,
        context=build(ContextConfig, values),
        engine=engine,
        disk=build(DiskConfig, values),
        server=server,
    )


def check_several(server: ServerConfig, model: ModelConfig) -> None:
    """Refuse what is about one model, where there are several. Raises ConfigError."""
    about_one = {"--alias": server.model_alias, "--warm": server.warm, "--lora": model.lora}
    for flag, value in about_one.items():
        if value:
            raise ConfigError(f"{flag} is about one model, and several are to be served")


def run(settings: Settings) -> NoReturn:
    """Serve until SIGTERM or SIGINT, free everything, and end the process with exit code 0.

    While a single model is loaded at the start, a signal ends the process as it ends any other.
    """
    rules = None if settings.server.script is None else read_rules(settings.server.script)
    orders = warm_orders(settings.server)
    end_at_once_on_signals()  # Python's own handler would wait for llama.cpp to have loaded
    machine.allow_open_files(connections=settings.server.limits.connections)
    warn_of_large_cache(settings.engine, ram_bytes=machine.total_ram_bytes())
    if settings.models:
        serve_several(settings, rules)
    else:
        serve_one(settings, rules, orders)
    leave_at_once()


def serve_one(settings: Settings, rules: Sequence[Rule] | None, orders: Sequence[WarmOrder]) -> None:
    """Load the model, serve it, and free it."""
    # Bound before the model is loaded: a busy port must not cost a minute of loading.
    with open_socket(settings.server) as listener:
        shared = Shared.of(settings.server.limits)
        kept = KeptOnce(settings)
        hosted = host(settings, settings.model, shared=shared, kept=kept, rules=rules, orders=orders)
        shared.metrics.watch_engine(hosted.engine.stats)
        facts = facts_of(settings, hosted, url=url_of(listener))
        try:
            serve_app(
                build_app(hosted.state),
                settings.server,
                listener=listener,
                ready=lambda: announce(facts),
                beside=lambda: warm(hosted.state),
            )
        finally:
            hosted.engine.close(flush_seconds=settings.server.shutdown_seconds)
        hosted.free()


def serve_several(settings: Settings, rules: Sequence[Rule] | None) -> None:
    """Serve models that are loaded when a request asks for them, one at a time.

    One that was named and plainly cannot be loaded is refused at once; of a directory the others are served.
    """
    with open_socket(settings.server) as listener:
        source = ModelHost(settings, rules=rules)
        for model in settings.models:
            if model.is_required:
                source.check(model.name)
        metrics = source.shared.metrics
        switch = ModelSwitch(
            source=source,
            metrics=metrics,
            queue=settings.engine.queue,
            max_passes=settings.engine.max_passes,
            clock=time.monotonic,
        )
        metrics.watch_engine(switch.stats)
        app = build_switching_app(switch, settings.server, metrics=metrics, new_id=new_id, created=int(time.time()))
        facts = {"models": ", ".join(source.names), **_common_facts(settings), "url": url_of(listener)}
        try:
            serve_app(app, settings.server, listener=listener, ready=lambda: announce(facts))
        finally:
            switch.close(timeout_seconds=settings.server.shutdown_seconds)


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


def facts_of(settings: Settings, hosted: Hosted, *, url: str) -> dict[str, str]:
    """What the banner shows."""
    context, info, engine = settings.context, hosted.model.info, hosted.engine
    mode = "exact, one stream" if settings.engine.exact else f"{engine.parallel} streams"
    facts = {
        "model": f"{info.name} ({info.description}, {format_size(info.size_bytes)})",
        "memory": f"{engine.capabilities.kind}, KV types {context.type_k}/{context.type_v}",
        "context": f"{engine.context_tokens} tokens, {mode}",
        "template": hosted.selected.words,
        "tool format": hosted.reply_format.name,
        **_common_facts(settings),
    }
    if engine.stats().cache_fault is not None:
        facts["cache RAM"] = "off: the self-test failed"
    if not engine.has_disk:
        facts["cache disk"] = "off"
    return {**facts, "url": url}


def _common_facts(settings: Settings) -> dict[str, str]:
    """What the banner shows of any model, unless that turns out otherwise."""
    disk = settings.disk
    on_disk = settings.engine.cache and disk.cache_disk is not None
    return {
        "cache RAM": format_size(settings.engine.cache_ram_bytes) if settings.engine.cache else "off",
        "cache disk": f"{disk.cache_disk}, {format_size(disk.cache_disk_bytes)}" if on_disk else "off",
        "threads": f"{settings.context.threads}",
    }


class _ServeCommand(SuggestingCommand):
    """Takes models as arguments or, as llama-server does, behind a flag."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``models`` are all that are named, ``model`` is the first of them, or the default."""
        rest = super().parse_args(ctx, args)
        named, models = ctx.params.pop("models_named"), ctx.params["models"]
        if named and models:
            raise click.UsageError(f"--model: the model is {models[0]} already", ctx=ctx)
        models = models or named
        if not models and ctx.params["models_directory"] is None:
            models = (ModelConfig().model,)
        ctx.params["models"] = models
        ctx.params["model"] = models[0] if models else ModelConfig().model
        return rest


def _serve(*, log_level: str, log_format: str, **values: Any) -> None:
    """Serve a model to clients of OpenAI and Anthropic.

    MODEL is the path of a GGUF file, 'smollm2' (the default), or 'test:ARCH' (random weights). Several take turns: each
    is loaded when a request names it.
    """
    set_up_logging(log_level, log_format)
    run(settings_from(values))


serve = _ServeCommand(
    "serve",
    callback=_serve,
    help=_serve.__doc__,
    params=[click.Argument(["models"], nargs=-1, metavar="[MODEL]..."), *SETTINGS, MODEL_NAMED, *LOGGING],
)
