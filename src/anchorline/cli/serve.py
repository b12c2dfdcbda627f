"""``anchorline serve``: the parts are joined here and nowhere else."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from anchorline.cli import machine
from anchorline.cli.logs import FORMATS, LEVELS, set_up_logging
from anchorline.cli.options import SettingOption, build, options_of
from anchorline.cli.suggest import SuggestingCommand
from anchorline.config import ContextConfig, EngineConfig, ModelConfig, ServerConfig

SETTINGS: tuple[SettingOption, ...] = (
    *options_of(ServerConfig, section="Server"),
    *options_of(EngineConfig, section="Engine and cache"),
    *options_of(ContextConfig, section="Context"),
    *options_of(ModelConfig, section="Model"),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything ``serve`` was told, with the values that depend on the machine filled in."""

    model: ModelConfig
    context: ContextConfig
    engine: EngineConfig
    server: ServerConfig


def settings_from(values: dict[str, Any]) -> Settings:
    """Configs from parsed options; raises ConfigError naming the flag."""
    if values["cache_ram_bytes"] is None:
        values["cache_ram_bytes"] = machine.default_cache_bytes()
    values["threads"] = values["threads"] or machine.physical_cores()
    values["threads_batch"] = values["threads_batch"] or values["threads"]
    engine = build(EngineConfig, values)
    engine.validate()
    return Settings(
        model=build(ModelConfig, values),
        context=build(ContextConfig, values),
        engine=engine,
        server=build(ServerConfig, values),
    )


def _serve(*, log_level: str, log_format: str, **values: Any) -> None:
    """Serve MODEL: the path of a GGUF file, 'smollm2' (the default), or 'test:ARCH' (random weights)."""
    set_up_logging(log_level, log_format)
    settings = settings_from(values)
    raise NotImplementedError(settings)


serve = SuggestingCommand(
    "serve",
    callback=_serve,
    help=_serve.__doc__,
    context_settings={"max_content_width": 120},
    params=[
        click.Argument(["model"], default=ModelConfig().model),
        *SETTINGS,
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
            type=click.Choice(FORMATS),
            default="text",
            show_default=True,
            help="Log as lines of text or as one JSON object per line.",
        ),
    ],
)
