"""Exact engines over real models, for tests that compare answers bit for bit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.config import ContextConfig, EngineConfig
from anchorline.engine.engine import Engine
from anchorline.engine.request import CallReport, GenerationRequest
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
) -> Iterator[Engine]:
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
    engine = Engine(runtime, config, clock=time.monotonic)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


Answer = tuple[list[int], list[float]]
"""Ids, and the log-probabilities of the likeliest candidates at each step."""


def ask(engine: Engine, prompt: Prompt, name: str) -> tuple[Answer, CallReport]:
    request = GenerationRequest(
        id=name,
        prompt=prompt,
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_tokens=TOKENS,
        logprobs=TOP,
        received_seconds=time.monotonic(),
    )
    recorder = Recorder()
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
