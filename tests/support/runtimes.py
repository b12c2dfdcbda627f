"""Small runtimes on one thread, and the few steps that tests of them are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from anchorline.config import ContextConfig
from anchorline.llama.interface import DecodeStatus, TokenArray
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from anchorline.llama.sampler import read_logits

Logits = npt.NDArray[np.float32]


def make_runtime(model: Model, *, sequences: int = 3, context_tokens: int = 2048, **options: Any) -> LlamaRuntime:
    """A runtime on one thread that leaves ``model`` open when it is closed."""
    config = ContextConfig(**{"context_tokens": context_tokens, "threads": 1, **options})
    return LlamaRuntime(model, config, sequences=sequences, owns_model=False)


def random_tokens(count: int, *, seed: int = 1, below: int = 500) -> TokenArray:
    return np.random.default_rng(seed).integers(17, below, count).astype(np.int32)


def feed(runtime: LlamaRuntime, tokens: TokenArray, *, start: int, sequence: int = 0) -> Logits:
    """Decode ``tokens`` in one batch; returns a copy of the last one's logits."""
    runtime.batch.clear()
    index = runtime.batch.add(tokens, start=start, sequence=sequence, output=True)
    assert runtime.decode() is DecodeStatus.OK
    return logits(runtime, index)


def logits(runtime: LlamaRuntime, index: int) -> Logits:
    return read_logits(runtime._context, index, runtime.limits.vocab_size).copy()


def fresh(nbytes: int) -> memoryview:
    """An allocator for exports that always has room."""
    return memoryview(bytearray(nbytes))


def export(runtime: LlamaRuntime, start: int, end: int, *, sequence: int = 0) -> memoryview:
    rows = runtime.export_rows(sequence, start, end, fresh)
    assert rows is not None
    return rows
