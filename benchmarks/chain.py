"""What restoring a long chain costs over copying its bytes: the chain as it grew, and merged as the engine does.

A conversation of many turns is saved turn by turn, twice: with every segment left as it was, and
with the engine's write-behind, which merges. Each chain is then put back into the empty pool again
and again, in turns with a plain copy of the same bytes, both in CPU time of the one thread that does it.
The median of the paired ratios is the result. llama.cpp books each token's cell besides, whatever its
rows weigh; a line says from what weight on that is less than a tenth.

Attention over a context this long would take hours on a CPU and changes no byte count, so only the
first tokens are computed; the rest of the live sequence are their rows, put at later positions.

Run: python benchmarks/chain.py [--model MODEL] [--layers N] [--tokens N] [--turns N]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when llama.cpp's OpenMP starts

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import click
import numpy as np

from anchorline.bench.models import served_model
from anchorline.cache.chains import restore_spans
from anchorline.cache.host import HostArena
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.config import ContextConfig, ModelConfig
from anchorline.engine.live import LiveSequence, SequencePool, TokenBuffer
from anchorline.engine.restoring import Restorer
from anchorline.engine.saving import Saver
from anchorline.engine.speeds import SpeedMeter
from anchorline.llama.blobs import CELL_SIZES, HEADER_BYTES, KV_HEADER_BYTES
from anchorline.llama.interface import TokenArray
from anchorline.llama.model import load_model
from anchorline.llama.runtime import LlamaRuntime
from anchorline.machine import physical_cores
from anchorline.numbers import IntegerRangeType
from anchorline.refusal import RefusingCommand

HEAD_SHARE = 16
"""The head takes this part of the tokens, as 8K of 128K."""
GENERATION_TOKENS = 4
REPLY_SHARE = 4
"""Of a turn's tokens, the reply's."""
COMPUTED_TOKENS = 512
SPARE_BYTES = 64 << 20
COPY_BLOCK_BYTES = 4 << 20
"""Larger copies bypass the CPU's caches, which is slower here."""


@contextmanager
def loaded(model: str, *, layers: int | None, tokens: int) -> Iterator[LlamaRuntime]:
    """A runtime whose pool holds ``tokens`` cells."""
    config = ContextConfig(
        context_tokens=tokens,
        batch_tokens=COMPUTED_TOKENS,
        ubatch_tokens=COMPUTED_TOKENS,
        threads=physical_cores(),
        threads_batch=physical_cores(),
    )
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder:
        path, *_ = served_model(model, folder=Path(folder), layers=layers, context_tokens=tokens)
        made = load_model(ModelConfig(model=path, test_context=min(tokens, 131_072)))
        runtime = LlamaRuntime(made, config, sequences=1)
        try:
            yield runtime
        finally:
            runtime.close()


def fill(runtime: LlamaRuntime, ids: TokenArray) -> None:
    """Let sequence 0 hold ``ids``: the first are computed, their rows repeated at later positions."""
    runtime.batch.clear()
    runtime.batch.add(ids[:COMPUTED_TOKENS], start=0, sequence=0, output=False)
    runtime.decode()
    rows = runtime.export_rows(0, 0, COMPUTED_TOKENS, lambda size: memoryview(bytearray(size)))
    assert rows is not None
    begin = HEADER_BYTES + KV_HEADER_BYTES
    cell_bytes = CELL_SIZES[0]
    cells = np.frombuffer(rows, np.uint8)[begin : begin + COMPUTED_TOKENS * cell_bytes].view(np.int32)
    positions = cells[:: cell_bytes // 4]
    for start in range(COMPUTED_TOKENS, ids.size, COMPUTED_TOKENS):
        positions += COMPUTED_TOKENS
        end = min(start + COMPUTED_TOKENS, ids.size)
        assert runtime.import_rows(0, rows, start, end), "llama.cpp refused the rows"


def turns(ids: TokenArray, count: int) -> Iterator[tuple[Prompt, int]]:
    """Each turn's prompt, and the length of the history with its reply."""
    head = ids.size // HEAD_SHARE
    cuts = [Cut(head, CutKind.HEAD)]
    ends = np.linspace(head, ids.size, count + 1).astype(int).tolist()
    for number, (start, end) in enumerate(pairwise(ends)):
        length = end - (end - start) // REPLY_SHARE
        generation = Cut(length - GENERATION_TOKENS, CutKind.GENERATION)
        yield (
            Prompt(tokens=ids[:length], cuts=(*cuts, generation), tool_fingerprint="tools", pin_head=True),
            end,
        )
        cuts.append(Cut(end, CutKind.MESSAGE, number))


def save(runtime: LlamaRuntime, cache: PrefixCache, ids: TokenArray, *, count: int, merging: bool) -> None:
    """Save a conversation of ``count`` turns as it grows."""
    saver = Saver(runtime, cache)
    for prompt, end in turns(ids, count):
        live = LiveSequence(0, prompt, TokenBuffer(ids[:end], spare=0))
        live.length = end
        saver.enqueue(live)
        if merging:
            while saver.has_work:
                saver.advance()
        else:
            assert live.saving is not None
            for _ in live.saving.pieces:
                pass
            saver.abandon(live)


class Chain:
    """One saved conversation, to be put back and to be copied."""

    def __init__(self, runtime: LlamaRuntime, cache: PrefixCache, ids: TokenArray) -> None:
        self._pool = SequencePool(runtime)
        self._restorer = Restorer(runtime=runtime, pool=self._pool, meter=SpeedMeter(), clock=time.thread_time)
        self._cache = cache
        self._prompt = Prompt(tokens=ids)
        self._match = cache.match(self._prompt, ids)
        assert self._match.restorable == ids.size, "the arena was too small"
        self.spans = restore_spans(self._match, 0, ids.size)
        self.nbytes = sum(span.rows.nbytes for span in self.spans)

    def restore(self) -> float:
        """Put the chain into the empty pool and drop it again; the seconds of the former."""
        live = self._pool.create(self._prompt, TokenBuffer(self._prompt.tokens, spare=0))
        started = time.thread_time()
        failure = self._restorer.restore(self._cache, live, self._match, len(self._prompt))
        seconds = time.thread_time() - started
        assert failure is None, failure
        self._pool.drop(live)
        return seconds

    def copy(self, target: memoryview) -> float:
        """Copy the same bytes behind each other; the seconds it took."""
        started = time.thread_time()
        offset = 0
        for span in self.spans:
            for start in range(0, span.rows.nbytes, COPY_BLOCK_BYTES):
                block = span.rows.memory[start : start + COPY_BLOCK_BYTES]
                target[offset : offset + block.nbytes] = block
                offset += block.nbytes
        return time.thread_time() - started


def make_cache(runtime: LlamaRuntime, *, tokens: int) -> PrefixCache:
    """Room for the conversation and for a copy of all of it."""
    limits = runtime.limits
    budget_bytes = int(2.2 * tokens * limits.bytes_per_token) + SPARE_BYTES
    return PrefixCache(
        runtime.capabilities,
        arena=HostArena(budget_bytes),
        pin_budget_bytes=budget_bytes // 2,
        max_pins=1,
        exact=False,
        batch_tokens=limits.batch_tokens,
        bytes_per_token=limits.bytes_per_token,
        clock=time.monotonic,
    )


@click.command(cls=RefusingCommand)
@click.option("--model", default="test:llama", show_default=True, help="test:ARCH, a GGUF file or 'smollm2'.")
@click.option("--layers", type=IntegerRangeType(1), default=None, help="Keep only this many layers of a file's model.")
@click.option("--tokens", type=IntegerRangeType(4096), default=131_072, show_default=True, help="Length of the chain.")
@click.option("--turns", "count", type=IntegerRangeType(1), default=60, show_default=True, help="Turns it grew over.")
@click.option("--rounds", type=IntegerRangeType(1), default=15, show_default=True, help="Restores of each chain.")
def main(*, model: str, layers: int | None, tokens: int, count: int, rounds: int) -> None:
    """Measure restores of a chain before and after merging, and print the medians."""
    ids = np.random.default_rng(0).integers(100, 400, tokens).astype(np.int32)
    with loaded(model, layers=layers, tokens=tokens) as runtime:
        fill(runtime, ids)
        caches = {name: make_cache(runtime, tokens=tokens) for name in ("as it grew", "merged")}
        for name, cache in caches.items():
            save(runtime, cache, ids, count=count, merging=name == "merged")
        runtime.remove(0, 0)
        chains = {name: Chain(runtime, cache, ids) for name, cache in caches.items()}
        target = memoryview(bytearray(max(chain.nbytes for chain in chains.values())))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in chains}
        for _ in range(rounds + 1):  # the first round warms up
            for name, chain in chains.items():
                times[name].append((chain.restore(), chain.copy(target)))
    merged = caches["merged"].counters
    click.echo(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs")
    click.echo(f"{tokens} tokens in {count} turns, {chains['merged'].nbytes / 1e6:.1f} MB, medians of {rounds}:")
    for name, chain in chains.items():
        pairs = times[name][1:]
        restore, copy = (statistics.median(pair[index] for pair in pairs) * 1e3 for index in (0, 1))
        ratio = statistics.median(restored / copied for restored, copied in pairs)
        click.echo(
            f"  {name:<10}  {len(chain.spans):>4} segments  "
            f"restore {restore:7.1f} ms  copy {copy:7.1f} ms  ratio {ratio:.2f}"
        )
    pairs = times["merged"][1:]
    extra = statistics.median(restored - copied for restored, copied in pairs) / tokens
    copy_seconds_per_byte = statistics.median(copied for _, copied in pairs) / chains["merged"].nbytes
    enough_bytes = 10 * extra / copy_seconds_per_byte
    click.echo(f"{extra * 1e6:.2f} µs a token besides the copy: a tenth of it at {enough_bytes / 1e3:.0f} kB a token")
    click.echo(f"merging copied {merged.merged_bytes / chains['merged'].nbytes:.2f} times the chain's bytes, in all")


if __name__ == "__main__":
    main()
