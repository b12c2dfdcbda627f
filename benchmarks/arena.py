"""How fast segments leave the live cells: into pages of the arena that were used before, and into new ones.

A long sequence is decoded once; then its rows are exported again and again, in turns into a warm and a fresh
arena, and put back once more from the warm one.

Run: python benchmarks/arena.py [--model MODEL] [--layers N] [--tokens N]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when llama.cpp's OpenMP starts

import statistics
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from anchorline.bench.models import bench_model
from anchorline.cache.host import HostArena
from anchorline.config import ContextConfig, ModelConfig
from anchorline.llama.model import load_model
from anchorline.llama.runtime import LlamaRuntime
from anchorline.machine import physical_cores
from anchorline.numbers import IntegerRangeType
from anchorline.refusal import RefusingCommand

GB = 1e9
ARENA_BYTES = 2 << 30


def prefill(runtime: LlamaRuntime, *, tokens: int, vocab_size: int) -> None:
    """Put a sequence of random ids into the live cells."""
    ids = np.random.default_rng(0).integers(100, vocab_size - 100, tokens).astype(np.int32)
    for start in range(0, tokens, runtime.limits.batch_tokens):
        part = ids[start : start + runtime.limits.batch_tokens]
        runtime.batch.clear()
        runtime.batch.add(part, start=start, sequence=0, output=False)
        runtime.decode()


def export(runtime: LlamaRuntime, arena: HostArena, *, tokens: int) -> tuple[memoryview, float]:
    """Export the whole sequence; the rows and GB/s. The range goes back to the arena at once."""

    def allocate(nbytes: int) -> memoryview | None:
        extent = arena.allocate(nbytes)
        assert extent is not None, "the arena is smaller than the sequence"
        arena.free(extent)
        return arena.view(extent)

    started = time.perf_counter()
    rows = runtime.export_rows(0, 0, tokens, allocate)
    seconds = time.perf_counter() - started
    assert rows is not None
    return rows, rows.nbytes / seconds / GB


def restore(runtime: LlamaRuntime, rows: memoryview, *, tokens: int) -> float:
    """Put the rows into the other sequence and drop them again; GB/s."""
    started = time.perf_counter()
    restored = runtime.import_rows(1, rows, 0, tokens)
    seconds = time.perf_counter() - started
    assert restored, "llama.cpp refused the rows"
    runtime.remove(1, 0)
    return rows.nbytes / seconds / GB


@click.command(cls=RefusingCommand)
@click.option("--model", default="smollm2", show_default=True, help="A GGUF file or 'smollm2'.")
@click.option("--layers", type=IntegerRangeType(1), default=None, help="Keep only this many layers of the model.")
@click.option("--tokens", type=IntegerRangeType(256), default=4096, show_default=True, help="Length of the sequence.")
@click.option("--rounds", type=IntegerRangeType(1), default=9, show_default=True, help="Exports of each sort.")
def main(*, model: str, layers: int | None, tokens: int, rounds: int) -> None:
    """Measure exports and restores and print the medians."""
    cells = tokens * 3  # the sequence, its restored copy, and the scratch sequence
    config = ContextConfig(context_tokens=cells, threads=physical_cores(), threads_batch=physical_cores())
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder:
        path = bench_model(model, folder=Path(folder), layers=layers, context_tokens=cells)
        loaded = load_model(ModelConfig(model=str(path)))
        runtime = LlamaRuntime(loaded, config, sequences=2)
        prefill(runtime, tokens=tokens, vocab_size=loaded.info.vocab_size)
        used = HostArena(ARENA_BYTES)
        rows, _ = export(runtime, used, tokens=tokens)
        warm, fresh, back = [], [], []
        for _ in range(rounds):
            rows, speed = export(runtime, used, tokens=tokens)
            warm.append(speed)
            fresh.append(export(runtime, HostArena(ARENA_BYTES), tokens=tokens)[1])
            back.append(restore(runtime, rows, tokens=tokens))
        megabytes = rows.nbytes / 1e6
        runtime.close()
    click.echo(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs")
    click.echo(f"{tokens} tokens, {megabytes:.1f} MB, medians of {rounds}:")
    for name, speeds in (("export, warm arena", warm), ("export, fresh arena", fresh), ("restore", back)):
        click.echo(f"  {name:<20} {statistics.median(speeds):6.2f} GB/s")


if __name__ == "__main__":
    main()
