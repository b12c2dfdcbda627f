"""``anchorline fit``: what a model takes of VRAM and RAM, and how many conversations are kept beside it."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.table import Table

from anchorline import machine
from anchorline.cli.fitting import Fit, Room, fit
from anchorline.cli.hosting import sequences_for
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.tables import show_table
from anchorline.cli.values import SizeType, format_size
from anchorline.config import KV_TYPES, ContextConfig, EngineConfig, ModelConfig
from anchorline.errors import ConfigError
from anchorline.llama.footprint import Footprint, measure
from anchorline.llama.model import load_model
from anchorline.numbers import IntegerRangeType

SIZE = SizeType(minimum_bytes=1 << 20, maximum_bytes=1 << 44)


@click.command("fit", cls=SuggestingCommand)
@click.argument("model", default=ModelConfig().model)
@click.option(
    "--ctx",
    "context_tokens",
    type=IntegerRangeType(0, 1 << 24),
    default=0,
    metavar="N",
    help="Tokens the live KV cache holds; default the model's training context.",
)
@click.option("--vram", "vram_bytes", type=SIZE, default=None, help="VRAM for the model; without it, it runs in RAM.")
@click.option("--ram", "ram_bytes", type=SIZE, default=None, help="RAM of the machine; default this one's.")
@click.option("--kv-type", type=click.Choice(KV_TYPES), default="f16", show_default=True, help="Type of K and V rows.")
@click.option(
    "--parallel",
    type=IntegerRangeType(1, 250),
    default=EngineConfig().parallel,
    show_default=True,
    metavar="N",
    help="Streams generated at the same time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, sizes in bytes.")
def fit_command(
    *,
    model: str,
    context_tokens: int,
    vram_bytes: int | None,
    ram_bytes: int | None,
    kv_type: str,
    parallel: int,
    as_json: bool,
) -> None:
    """Show what MODEL takes in memory, without loading its weights.

    Says what to change if that is too much, and then exits with 1.
    """
    ram_bytes = ram_bytes or machine.total_ram_bytes()
    if ram_bytes is None:
        raise ConfigError("this machine does not say how much RAM it has; give --ram")
    room = Room(vram_bytes=vram_bytes, ram_bytes=ram_bytes)
    with _errors_alone():
        result = _fit(model, context_tokens=context_tokens, kv_type=kv_type, parallel=parallel, room=room)
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        _show(result)
    if not result.fits:
        raise SystemExit(1)


@contextmanager
def _errors_alone() -> Iterator[None]:
    """Let llama.cpp and what is around it warn of nothing: it would, of every context that is measured."""
    logger = logging.getLogger("anchorline.llama")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fit(model: str, *, context_tokens: int, kv_type: str, parallel: int, room: Room) -> Fit:
    loaded = load_model(ModelConfig(model=model), weights=False)
    sequences = sequences_for(EngineConfig(parallel=parallel))

    def measured(tokens: int, kv: str) -> Footprint:
        return measure(loaded, ContextConfig(context_tokens=tokens, type_k=kv, type_v=kv), sequences=sequences)

    try:
        trained = loaded.info.train_context_tokens
        if context_tokens > trained:
            click.echo(f"note: the model was trained for {trained} tokens", err=True)
        tokens = context_tokens or trained
        return fit(model, context_tokens=tokens, kv_type=kv_type, parallel=parallel, room=room, measure=measured)
    finally:
        loaded.close()


def _show(result: Fit) -> None:
    show_table(_sizes(result))
    click.echo()
    show_table(_conversations(result))
    click.echo()
    if result.fits:
        click.echo(f"fits; start it with: {_serve_command(result)}")
    for change in result.changes:
        click.echo(change)


def _sizes(result: Fit) -> Table:
    footprint, room = result.footprint, result.room
    table = Table(title=f"{result.model}, {footprint.kind} memory, {footprint.context_tokens} tokens")
    for name in ("", "size", "of"):
        table.add_column(name, justify="left" if not name else "right")
    where = "RAM" if room.vram_bytes is None else "VRAM"
    for what, nbytes in (
        ("weights", footprint.weights_bytes),
        (f"live KV, {result.kv_type}", footprint.kv_bytes),
        ("compute buffers", footprint.compute_bytes),
    ):
        table.add_row(what, format_size(nbytes), where)
    table.add_row("together", format_size(footprint.live_bytes), f"{format_size(room.live_bytes)} of {where}")
    table.add_row("kept free for the rest", format_size(room.ram_bytes - room.ram_to_use_bytes), "RAM")
    table.add_row("left for --cache-ram", format_size(result.cache_bytes), f"{format_size(room.ram_bytes)} of RAM")
    table.add_row("rows of one token", format_size(footprint.row_bytes), "--cache-ram")
    table.add_row("state of one cut", format_size(footprint.state_bytes), "--cache-ram")
    return table


def _conversations(result: Fit) -> Table:
    table = Table()
    for name in ("conversations of", "saved size", "kept in RAM", "live at once"):
        table.add_column(name, justify="right")
    for entry in result.conversations:
        table.add_row(f"{entry.tokens} tokens", format_size(entry.saved_bytes), f"{entry.in_host}", f"{entry.resident}")
    return table


def _serve_command(result: Fit) -> str:
    parts = ["anchorline", "serve", result.model, "--ctx", str(result.footprint.context_tokens)]
    if result.kv_type != ContextConfig().type_k:
        parts += ["-ctk", result.kv_type, "-ctv", result.kv_type]
    if result.parallel != EngineConfig().parallel:
        parts += ["--parallel", str(result.parallel)]
    if result.room.vram_bytes is not None:
        parts += ["--gpu-layers", "all"]
    return shlex.join([*parts, "--cache-ram", f"{result.cache_bytes >> 20}MiB"])
