"""The engine's time per generated token at batch 1, against a bare llama_decode + llama_sampler_sample loop.

Both run on one loaded model in one process, in turns, with a context of their own each. The median of the
paired ratios is the result; the Python of the engine's step is what it holds.

Run: python benchmarks/decode_step.py [--model MODEL] [--layers N]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when llama.cpp's OpenMP starts

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
import llama_cpp.llama_cpp as api
import numpy as np

from anchorline.bench.models import bench_model
from anchorline.cache.prompt import Prompt
from anchorline.config import ContextConfig, EngineConfig, ModelConfig
from anchorline.engine.engine import Engine
from anchorline.engine.request import CallReport, FinishReason, GenerationRequest, SampledToken
from anchorline.errors import AnchorlineError
from anchorline.llama.context import create_context
from anchorline.llama.dry import DrySamplers
from anchorline.llama.interface import SamplingParams, TokenArray, TokenConstraint
from anchorline.llama.model import Model, load_model
from anchorline.llama.runtime import LlamaRuntime
from anchorline.llama.sampler import build_chain
from anchorline.machine import physical_cores
from anchorline.numbers import IntegerRangeType
from anchorline.refusal import RefusingCommand

CONTEXT_TOKENS = 4096
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True),
    "default": SamplingParams(seed=1, ignore_eos=True),
}


class Stamps:
    """A consumer that notes when the first and the last token came."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.error: AnchorlineError | None = None
        self.ended = threading.Event()

    def on_token(self, choice: int, token: SampledToken) -> bool:
        self.times.append(time.perf_counter())
        return False

    def on_finish(self, choice: int, reason: FinishReason) -> None: ...

    def on_done(self, report: CallReport) -> None:
        self.ended.set()

    def on_error(self, error: AnchorlineError, report: CallReport | None) -> None:
        self.error = error
        self.ended.set()


def engine_ms(
    engine: Engine,
    prompt: TokenArray,
    *,
    tokens: int,
    sampling: SamplingParams,
    name: str,
    constraint: TokenConstraint | None = None,
) -> float:
    """Milliseconds per token of one call, from its first token to its last."""
    stamps = Stamps()
    request = GenerationRequest(
        id=name,
        prompt=Prompt(tokens=prompt),
        sampling=sampling,
        max_tokens=tokens,
        constraint=constraint,
        use_cache=False,
    )
    engine.submit(request, stamps)
    stamps.ended.wait()
    if stamps.error is not None:
        raise stamps.error
    return (stamps.times[-1] - stamps.times[0]) / (len(stamps.times) - 1) * 1000


class BareLoop:
    """What is left when everything but llama.cpp is taken away."""

    def __init__(self, model: Model, config: ContextConfig) -> None:
        self._model = model
        self._context = create_context(model, config, sequences=1)
        self._vocab = api.llama_model_get_vocab(model.handle)
        self._dry = DrySamplers(self._vocab)

    def ms_per_token(self, prompt: TokenArray, *, tokens: int, sampling: SamplingParams) -> float:
        """Milliseconds per token of one generation, from its first token to its last."""
        api.llama_memory_clear(api.llama_get_memory(self._context), False)
        chain = build_chain(
            sampling,
            prompt,
            vocab=self._vocab,
            dry=self._dry,
            end_of_generation=self._model.tokenizer.end_of_generation,
            context_tokens=CONTEXT_TOKENS,
        )
        buffer = (api.llama_token * prompt.size)(*prompt.tolist())
        api.llama_decode(self._context, api.llama_batch_get_one(buffer, prompt.size))
        step = (api.llama_token * 1)()
        batch = api.llama_batch_get_one(step, 1)
        context, decode, sample = self._context, api.llama_decode, api.llama_sampler_sample
        step[0] = sample(chain, context, -1)
        started = time.perf_counter()
        for _ in range(tokens - 1):
            decode(context, batch)
            step[0] = sample(chain, context, -1)
        seconds = time.perf_counter() - started
        api.llama_sampler_free(chain)
        return seconds / (tokens - 1) * 1000

    def close(self) -> None:
        api.llama_free(self._context)


def measure(
    model: Model, *, sampling: SamplingParams, tokens: int, rounds: int, threads: int
) -> list[tuple[float, float]]:
    """(engine, bare) milliseconds per token, pair by pair; each goes first in every second pair."""
    config = ContextConfig(context_tokens=CONTEXT_TOKENS, threads=threads, threads_batch=threads)
    engine_config = EngineConfig(parallel=4, resident_idle=2, cache_ram_bytes=64 << 20)
    engine = Engine(LlamaRuntime(model, config, sequences=6, owns_model=False), engine_config, clock=time.monotonic)
    engine.start()
    bare = BareLoop(model, config)

    def prompt(number: int) -> TokenArray:
        return np.random.default_rng(number).integers(100, model.info.vocab_size - 100, 64).astype(np.int32)

    try:
        return in_pairs(
            lambda n: engine_ms(engine, prompt(n), tokens=tokens, sampling=sampling, name=f"call-{n}"),
            lambda n: bare.ms_per_token(prompt(n), tokens=tokens, sampling=sampling),
            rounds=rounds,
        )
    finally:
        engine.close()
        bare.close()


def in_pairs(one: Callable[[int], float], other: Callable[[int], float], *, rounds: int) -> list[tuple[float, float]]:
    """What both measure in pair 1, 2, …; each goes first in every second pair, and pair 0 warms both up."""
    pairs = []
    for number in range(rounds + 1):
        if number % 2:
            first = one(number)
            pairs.append((first, other(number)))
        else:
            second = other(number)
            pairs.append((one(number), second))
    return pairs[1:]


@click.command(cls=RefusingCommand)
@click.option("--model", default="smollm2", show_default=True, help="A GGUF file or 'smollm2'.")
@click.option("--layers", type=IntegerRangeType(1), default=None, help="Keep only this many layers of the model.")
@click.option("--tokens", type=IntegerRangeType(2), default=64, show_default=True, help="Tokens of one generation.")
@click.option("--rounds", type=IntegerRangeType(1), default=15, show_default=True, help="Pairs.")
@click.option("--threads", type=IntegerRangeType(0), default=0, show_default=True, help="0 takes the physical cores.")
@click.option("--sampling", type=click.Choice(list(SAMPLINGS)), default="default", show_default=True)
def main(*, model: str, layers: int | None, tokens: int, rounds: int, threads: int, sampling: str) -> None:
    """Measure both in turns and print the medians and the median of the paired ratios."""
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder:
        path = bench_model(model, folder=Path(folder), layers=layers, context_tokens=CONTEXT_TOKENS)
        loaded = load_model(ModelConfig(model=str(path)))
        pairs = measure(
            loaded, sampling=SAMPLINGS[sampling], tokens=tokens, rounds=rounds, threads=threads or physical_cores()
        )
        loaded.close()
    ours = statistics.median(pair[0] for pair in pairs)
    theirs = statistics.median(pair[1] for pair in pairs)
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    click.echo(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs, {rounds} pairs of {tokens} tokens")
    click.echo(f"engine {ours:.3f} ms/token, bare loop {theirs:.3f} ms/token, median ratio {ratio:.4f}")


if __name__ == "__main__":
    main()
