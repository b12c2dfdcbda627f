"""The start-up self-test: does this model, on this machine, come back from segments as it left?

A short prefix is decoded in three spans, each exported as it ends, and one more token is decoded.
Then the sequence is dropped, restored as a chain, and the same token decoded again. A cache that
does not pass is not used.
"""

from __future__ import annotations

import numpy as np

from anchorline.engine.reseating import fresh
from anchorline.errors import BackendFailure
from anchorline.llama.interface import DecodeStatus, Runtime, TokenArray

SPAN_TOKENS = 24
SPANS = 3
PROBED_TOKENS = 16
TOLERANCE = 0.02
"""Largest difference in a log-probability. Cells that lie in another order change it by up to 1e-3; a
wrong restore changes it by far more."""


def self_test(runtime: Runtime) -> str | None:
    """What is wrong with exporting and restoring, in words; None when nothing is. Leaves the pool empty."""
    limits = runtime.limits
    if limits.context_tokens < 2 * SPANS * SPAN_TOKENS or limits.batch_tokens < SPAN_TOKENS:
        return None  # too small to tell; nothing worth keeping fits in either
    tokens = (np.arange(SPANS * SPAN_TOKENS + 1, dtype=np.int64) * 7919 % limits.vocab_size).astype(np.int32)
    try:
        return _compare(runtime, tokens)
    except BackendFailure as failure:
        return str(failure)
    finally:
        runtime.remove(0, 0)


def _compare(runtime: Runtime, tokens: TokenArray) -> str | None:
    end = SPANS * SPAN_TOKENS
    spans: list[tuple[memoryview, int, int]] = []
    for start in range(0, end, SPAN_TOKENS):
        _decode(runtime, tokens[start : start + SPAN_TOKENS], start)
        rows = runtime.export_rows(0, start, start + SPAN_TOKENS, fresh)
        assert rows is not None
        spans.append((rows, start, start + SPAN_TOKENS))
    state = runtime.export_state(0, fresh) if runtime.capabilities.has_state else None
    left = _decode(runtime, tokens[end:], end)
    runtime.remove(0, 0)
    for rows, start, stop in spans:
        if not runtime.import_rows(0, rows, start, stop):
            return f"the rows of [{start}, {stop}) were refused"
    if state is not None and not runtime.import_state(0, state, end):
        return f"the state at {end} was refused"
    restored = _decode(runtime, tokens[end:], end)
    difference = max(abs(before - after) for before, after in zip(left, restored, strict=True))
    if difference > TOLERANCE:
        return f"a restored chain changes log-probabilities by {difference:.2g}"
    return None


def _decode(runtime: Runtime, tokens: TokenArray, start: int) -> list[float]:
    """Log-probabilities of some fixed tokens after ``tokens``."""
    runtime.batch.clear()
    output = runtime.batch.add(tokens, start=start, sequence=0, output=True)
    if runtime.decode() is not DecodeStatus.OK:
        raise BackendFailure("an empty pool has no room for a short prefix")
    probed = range(0, runtime.limits.vocab_size, max(1, runtime.limits.vocab_size // PROBED_TOKENS))
    return [runtime.logprobs(output, token, 0)[0].logprob for token in probed]
