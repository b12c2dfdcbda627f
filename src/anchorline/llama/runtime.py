"""One loaded model with one live KV pool: ``interface.Runtime`` over llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anchorline.config import ContextConfig
from anchorline.errors import BackendFailure
from anchorline.llama import library
from anchorline.llama.batch import LlamaBatch
from anchorline.llama.context import create_context, output_limit
from anchorline.llama.interface import (
    DecodeStatus,
    MemoryKind,
    RuntimeLimits,
    SamplingParams,
    TokenArray,
    TokenLogprob,
)
from anchorline.llama.library import api
from anchorline.llama.model import Model, require_plain
from anchorline.llama.sampler import LlamaSampler, build_chain, log_probabilities, read_logits
from anchorline.llama.segments import SegmentPort

_OK, _NO_SLOT = 0, 1


class LlamaRuntime:
    """Implements ``interface.Runtime``. The scratch id is the one after the engine's own."""

    def __init__(self, model: Model, context: ContextConfig, *, sequences: int, owns_model: bool = True) -> None:
        """Make the context and run two tokens through it, which also measures a cell's exported bytes.

        ``close`` frees ``model`` too unless ``owns_model`` is False. Raises ConfigError and
        ModelError, and then leaves ``model`` open.
        """
        require_plain(model)
        self._model = model
        self._owns_model = owns_model
        self._context: Any = create_context(model, context, sequences=sequences)
        self._memory = api.llama_get_memory(self._context)
        self._batch = LlamaBatch(api.llama_n_batch(self._context), outputs=output_limit(sequences))
        self._segments = SegmentPort(self._context, scratch=sequences)
        self._vocab = api.llama_model_get_vocab(model.handle)
        self._end_of_generation = model.tokenizer.end_of_generation
        self._sequences = sequences
        try:
            bytes_per_token = self._warm_up()
        except BackendFailure:
            api.llama_free(self._context)
            raise
        self._limits = RuntimeLimits(
            context_tokens=api.llama_n_ctx(self._context),
            batch_tokens=api.llama_n_batch(self._context),
            ubatch_tokens=api.llama_n_ubatch(self._context),
            sequences=sequences,
            vocab_size=model.info.vocab_size,
            bytes_per_token=bytes_per_token,
        )

    @property
    def limits(self) -> RuntimeLimits:
        return self._limits

    @property
    def kind(self) -> MemoryKind:
        return self._model.kind

    @property
    def batch(self) -> LlamaBatch:
        return self._batch

    def is_end_of_generation(self, token: int) -> bool:
        return token in self._end_of_generation

    def decode(self) -> DecodeStatus:
        assert self._batch.size > 0, "the batch is empty"
        code = api.llama_decode(self._context, self._batch.native)
        if code == _OK:
            return DecodeStatus.OK
        if code == _NO_SLOT:
            return DecodeStatus.NO_CELLS
        why = library.reason(library.log.recent, otherwise="llama.cpp gave no reason")
        raise BackendFailure(f"llama_decode returned {code}: {why}")

    def sampler(self, params: SamplingParams, history: TokenArray) -> LlamaSampler:
        chain = build_chain(
            params,
            history,
            vocab=self._vocab,
            end_of_generation=self._end_of_generation,
            context_tokens=self._limits.context_tokens,
        )
        return LlamaSampler(chain, self._context)

    def logprobs(self, output_index: int, token: int, top: int) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
        logits = read_logits(self._context, output_index, self._limits.vocab_size)
        return log_probabilities(logits, token, top)

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None:
        assert source != target
        assert 0 <= start < end
        self._check_id(source)
        self._check_id(target)
        api.llama_memory_seq_cp(self._memory, source, target, start, end)

    def remove(self, sequence: int, start: int, end: int | None = None) -> None:
        self._check_id(sequence)
        if not api.llama_memory_seq_rm(self._memory, sequence, start, -1 if end is None else end):
            raise BackendFailure(f"llama.cpp could not remove [{start}, {end}) of sequence {sequence}")

    def length(self, sequence: int) -> int:
        self._check_id(sequence)
        return self._segments.length(sequence)

    def export_rows(
        self, sequence: int, start: int, end: int, allocate: Callable[[int], memoryview | None]
    ) -> memoryview | None:
        self._check_id(sequence)
        return self._segments.export_rows(sequence, start, end, allocate)

    def import_rows(self, sequence: int, rows: memoryview, start: int, end: int) -> bool:
        self._check_id(sequence)
        return self._segments.import_rows(sequence, rows, start, end)

    def close(self) -> None:
        if self._context is None:
            return
        api.llama_free(self._context)
        self._context = None
        if self._owns_model:
            self._model.close()

    def _check_id(self, sequence: int) -> None:
        # seq_cp takes ids outside n_seq_max without complaint and makes blobs nobody can read.
        assert 0 <= sequence < self._sequences, f"sequence {sequence} is not one of {self._sequences}"

    def _warm_up(self) -> float:
        """Decode two tokens, as the first decode is slow, and return the exported bytes of one."""
        self._batch.add(np.zeros(2, np.int32), start=0, sequence=0, output=False)
        if self.decode() is not DecodeStatus.OK:
            raise BackendFailure("the context has no room for two tokens")
        bytes_per_token = self._segments.measure()
        api.llama_memory_clear(self._memory, False)
        self._batch.clear()
        return bytes_per_token
