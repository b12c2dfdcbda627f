"""One loaded model with one live KV pool: ``interface.Runtime`` over llama.cpp."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from anchorline.config import ContextConfig
from anchorline.errors import BackendFailure
from anchorline.llama import capabilities, library
from anchorline.llama.batch import LlamaBatch
from anchorline.llama.blobs import CELL_SIZES, MemoryLayout
from anchorline.llama.context import create_context, output_limit
from anchorline.llama.dry import DrySamplers
from anchorline.llama.interface import (
    Capabilities,
    DecodeStatus,
    RuntimeLimits,
    SamplingParams,
    TokenArray,
    TokenLogprob,
    TokenMask,
)
from anchorline.llama.library import api
from anchorline.llama.model import Model
from anchorline.llama.sampler import (
    Candidates,
    LlamaSampler,
    MaskedSampler,
    build_chain,
    log_probabilities,
    prepare_chain,
    read_logits,
)
from anchorline.llama.segments import SegmentPort

_OK, _NO_SLOT = 0, 1


class LlamaRuntime:
    """Implements ``interface.Runtime``. The scratch id is the one after the engine's own."""

    def __init__(self, model: Model, context: ContextConfig, *, sequences: int, owns_model: bool = True) -> None:
        """Make the context and run two tokens through it, on which its memory is probed.

        ``close`` frees ``model`` too unless ``owns_model`` is False. Raises ConfigError and
        ModelError, and then leaves ``model`` open.
        """
        self._model = model
        self._owns_model = owns_model
        self._context: Any = create_context(model, context, sequences=sequences)
        self._memory = api.llama_get_memory(self._context)
        self._batch = LlamaBatch(api.llama_n_batch(self._context), outputs=output_limit(sequences))
        self._vocab = api.llama_model_get_vocab(model.handle)
        self._dry = DrySamplers(self._vocab)
        self._end_of_generation = model.tokenizer.end_of_generation
        self._sequences = sequences
        try:
            self._capabilities, layout = self._warm_up(scratch=sequences)
        except BackendFailure:
            api.llama_free(self._context)
            raise
        self.layout = layout
        """What exports look like."""
        self._segments = SegmentPort(self._context, scratch=sequences, capabilities=self._capabilities, layout=layout)
        self._takes_gaps = layout.cell_bytes > min(CELL_SIZES)
        self._limits = RuntimeLimits(
            context_tokens=api.llama_n_ctx(self._context),
            batch_tokens=api.llama_n_batch(self._context),
            ubatch_tokens=api.llama_n_ubatch(self._context),
            sequences=sequences,
            vocab_size=model.info.vocab_size,
            bytes_per_token=float(layout.row_bytes),
            fork_bytes=self._capabilities.state_bytes if layout.window_row_bytes else 0,
        )

    @property
    def limits(self) -> RuntimeLimits:
        return self._limits

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def keep_whole_sequences(self) -> None:
        self._capabilities = capabilities.whole_sequences(
            self._capabilities,
            bytes_per_token=self._limits.bytes_per_token,
            context_tokens=self._limits.context_tokens,
        )
        self.layout = MemoryLayout(opaque=True)
        self._segments = SegmentPort(
            self._context, scratch=self._sequences, capabilities=self._capabilities, layout=self.layout
        )
        self._limits = dataclasses.replace(self._limits, bytes_per_token=0.0, fork_bytes=0)

    @property
    def batch(self) -> LlamaBatch:
        return self._batch

    def is_end_of_generation(self, token: int) -> bool:
        return token in self._end_of_generation

    def decode(self) -> DecodeStatus:
        assert self._batch.size > 0, "the batch is empty"
        if self._segments.incomplete:
            # llama.cpp would start a new history behind rows that have no state.
            complete = self._segments.incomplete.keys().isdisjoint(sequence for sequence, _, _ in self._batch.spans)
            assert complete, "a sequence of the batch lacks its state"
        if self._takes_gaps:
            self._refuse_gaps()
        return self._run()

    def prepare_sampler(self, params: SamplingParams) -> None:
        prepare_chain(
            params,
            dry=self._dry,
            vocab_size=self._limits.vocab_size,
            context_tokens=self._limits.context_tokens,
        )

    def sampler(self, params: SamplingParams, history: TokenArray, mask: TokenMask | None = None) -> LlamaSampler:
        chain = build_chain(
            params,
            history,
            vocab=self._vocab,
            dry=self._dry,
            end_of_generation=self._end_of_generation,
            context_tokens=self._limits.context_tokens,
        )
        if mask is None:
            return LlamaSampler(chain, self._context)
        return MaskedSampler(
            chain,
            self._context,
            mask=mask,
            candidates=self._candidates,
            takes_infinity=params.typical_p >= 1,  # it multiplies probabilities by their logarithms
        )

    @cached_property
    def _candidates(self) -> Candidates:
        return Candidates(self._limits.vocab_size)

    def logprobs(self, output_index: int, token: int, top: int) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
        logits = read_logits(self._context, output_index, self._limits.vocab_size)
        return log_probabilities(logits, token, top)

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None:
        assert source != target
        assert 0 <= start < end
        self._check_id(source)
        self._check_id(target)
        if self._capabilities.has_state:
            # Below the tip llama.cpp copies rows up to there and the state of the tip.
            assert start == 0, "a stateful sequence is forked whole"
            assert end == self._segments.length(source), "a stateful sequence is forked at its tip"
        self._segments.copy(source, target, start, end)

    def remove(self, sequence: int, start: int, end: int | None = None) -> None:
        self._check_id(sequence)
        if self._capabilities.has_state:
            # llama.cpp refuses some ranges and takes others out of the rows alone, which is silent corruption.
            assert start == 0, "a stateful sequence is removed whole"
            assert end is None, "a stateful sequence is removed whole"
        if not api.llama_memory_seq_rm(self._memory, sequence, start, -1 if end is None else end):
            raise BackendFailure(f"llama.cpp could not remove [{start}, {end}) of sequence {sequence}")
        self._segments.forget(sequence)

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

    def export_state(self, sequence: int, allocate: Callable[[int], memoryview | None]) -> memoryview | None:
        self._check_id(sequence)
        return self._segments.export_state(sequence, allocate)

    def import_state(self, sequence: int, state: memoryview, position: int) -> bool:
        self._check_id(sequence)
        return self._segments.import_state(sequence, state, position)

    def close(self) -> None:
        if self._context is None:
            return
        self._dry.close()
        api.llama_free(self._context)
        self._context = None
        if self._owns_model:
            self._model.close()

    def _check_id(self, sequence: int) -> None:
        # seq_cp takes ids outside n_seq_max without complaint and makes blobs nobody can read.
        assert 0 <= sequence < self._sequences, f"sequence {sequence} is not one of {self._sequences}"

    def _refuse_gaps(self) -> None:
        """Raise BackendFailure as llama.cpp does itself on models without M-RoPE."""
        tips: dict[int, int] = {}
        for sequence, start, end in self._batch.spans:
            expected = tips.get(sequence)
            if expected is None:
                expected = api.llama_memory_seq_pos_max(self._memory, sequence) + 1
            if start != expected:
                raise BackendFailure(f"sequence {sequence} ends at {expected}; it cannot go on at {start}")
            tips[sequence] = end

    def _run(self) -> DecodeStatus:
        code = api.llama_decode(self._context, self._batch.native)
        if code == _OK:
            return DecodeStatus.OK
        if code == _NO_SLOT:
            return DecodeStatus.NO_CELLS
        why = library.reason(library.log.recent, otherwise="llama.cpp gave no reason")
        raise BackendFailure(f"llama_decode returned {code}: {why}")

    def _warm_up(self, *, scratch: int) -> tuple[Capabilities, MemoryLayout]:
        """Decode two tokens, as the first decode is slow, and probe the memory on them."""
        at_once = min(capabilities.PROBE_TOKENS, self._batch.room)  # --batch-size and --ctx may be 1
        for start in range(0, capabilities.PROBE_TOKENS, at_once):
            self._batch.clear()
            self._batch.add(np.zeros(at_once, np.int32), start=start, sequence=0, output=False)
            if self._run() is not DecodeStatus.OK:
                raise BackendFailure("the context has no room for two tokens")
        probed = capabilities.probe(self._context, model=self._model.handle, scratch=scratch)
        api.llama_memory_clear(self._memory, False)
        self._batch.clear()
        return probed
