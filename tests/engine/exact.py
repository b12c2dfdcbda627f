"""Exact engines over real models, for tests that compare answers bit for bit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.cli.disk import open_store
from anchorline.config import ContextConfig, DiskConfig, EngineConfig, ModelConfig
from anchorline.engine.engine import Engine
from anchorline.engine.request import CallReport, GenerationRequest
from anchorline.engine.stats import EngineStats
from anchorline.llama.interface import SamplingParams
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from tests.support.consumer import Recorder

TOKENS = 64
TOP = 5


@contextmanager
def engine_on(
    model: Model,
    *,
    cache: bool,
    exact: bool = True,
    kv: str = "f16",
    mib: int = 64,
    flash: str = "auto",
    parallel: int = 2,
    context_tokens: int = 4096,
    disk: Path | None = None,
    named: str | None = None,
) -> Iterator[Engine]:
    """An engine; with ``disk`` one that has read what others left there, and loses what it has to write at its end.

    ``named`` is what the model was loaded by, where that is not its name.
    """
    context = ContextConfig(
        context_tokens=context_tokens,
        batch_tokens=256,
        ubatch_tokens=256,
        threads=1,
        threads_batch=1,
        type_k=kv,
        type_v=kv,
        flash_attention=flash,
    )
    config = EngineConfig(cache=cache, exact=exact, cache_ram_bytes=mib << 20, parallel=parallel, resident_idle=0)
    runtime = LlamaRuntime(model, context, sequences=parallel, owns_model=False)
    kept = DiskConfig(cache_disk=None if disk is None else str(disk), cache_disk_required=True)
    store = partial(open_store, kept, ModelConfig(model=named or model.info.name), context, config, runtime)
    engine = Engine(runtime, config, clock=time.monotonic, open_store=store)
    engine.start()
    if disk is not None:
        at_rest(engine)
    try:
        yield engine
    finally:
        engine.close()


def at_rest(engine: Engine) -> EngineStats:
    """The counters once everything is saved, and written to disk, which goes on behind the replies."""
    pause = threading.Event()
    for _ in range(10_000):
        stats = engine.fresh_stats().result()
        if stats.running == stats.waiting == stats.pending_saves == stats.disk.pending_writes == 0 and (
            stats.disk.indexed or not stats.disk.enabled
        ):
            return stats
        pause.wait(0.005)
    raise AssertionError("the engine does not come to rest")


Answer = tuple[list[int], list[float]]
"""Ids, and the log-probabilities of the likeliest candidates at each step."""


def ask(engine: Engine, prompt: Prompt, name: str, *, recorder: Recorder | None = None) -> tuple[Answer, CallReport]:
    request = GenerationRequest(
        id=name,
        prompt=prompt,
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_tokens=TOKENS,
        logprobs=TOP,
        received_seconds=time.monotonic(),
    )
    recorder = recorder or Recorder()
    engine.submit(request, recorder)
    recorder.wait()
    assert recorder.error is None
    assert recorder.report is not None
    values = [candidate.logprob for token in recorder.sampled for candidate in token.alternatives]
    return (recorder.tokens[0], values), recorder.report


def conversation(seed: int, vocab_size: int, *lengths: int) -> list[Prompt]:
    """Prompts that each extend the one before, with a cut at every message end; heads are equal for all seeds."""
    head = np.random.default_rng(0).integers(3, vocab_size, 300).astype(np.int32)
    rest = np.random.default_rng(seed).integers(3, vocab_size, sum(lengths)).astype(np.int32)
    prompts = []
    for count in range(1, len(lengths) + 1):
        ends = [300 + sum(lengths[:upto]) for upto in range(1, count + 1)]
        tokens = np.concatenate((head, rest[: ends[-1] - 300]))
        cuts = [Cut(300, CutKind.HEAD), *(Cut(end, CutKind.MESSAGE, index) for index, end in enumerate(ends))]
        prompts.append(Prompt(tokens=tokens, cuts=tuple(cuts), tool_fingerprint="t", pin_head=True))
    return prompts
