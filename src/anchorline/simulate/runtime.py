"""A runtime that counts cells and bytes and computes nothing.

A sequence holds cell ids, so that forks share cells as they do in llama.cpp; exports take as many bytes as
the sizes say and leave them as they are. Time is what the given speeds make of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from anchorline.llama.interface import (
    Capabilities,
    DecodeStatus,
    MemoryKind,
    RuntimeLimits,
    SamplingParams,
    TokenArray,
    TokenLogprob,
    TokenMask,
)

_Cells = npt.NDArray[np.int32]
_NO_CELLS: _Cells = np.empty(0, dtype=np.int32)
NO_TOKEN = -1
"""Ends a generation; no reply holds it."""


class VirtualClock:
    """Seconds that pass only when something is said to take them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def wait_until(self, seconds: float) -> None:
        """Let the time pass until then; a moment that is over changes nothing."""
        self.seconds = max(self.seconds, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a model's memory would take, and how fast the machine would be."""

    bytes_per_token: int
    state_bytes: int = 0
    """Of one state of a stateful model; 0 means plain attention."""
    prefill_seconds_per_token: float = 1e-3
    restore_seconds_per_byte: float = 5e-10

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind=MemoryKind.HYBRID if self.state_bytes else MemoryKind.PLAIN,
            has_rows=True,
            has_state=self.state_bytes > 0,
            state_bytes=self.state_bytes,
        )


class NullBatch:
    """Counts the tokens of each sequence; implements ``Batch``."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.size = 0
        self.fed: list[tuple[int, int]] = []
        """(sequence, tokens) of each share."""

    def clear(self) -> None:
        self.size = 0
        self.fed.clear()

    @property
    def room(self) -> int:
        return self._capacity - self.size

    def add(self, tokens: TokenArray, *, start: int, sequence: int, output: bool) -> int:
        assert 0 < tokens.size <= self.room
        self.fed.append((sequence, int(tokens.size)))
        self.size += int(tokens.size)
        return self.size - 1


class HashSampler:
    """Replies with tokens that are a function of the prompt alone; implements ``Sampler``."""

    def __init__(self, history: TokenArray, vocab_size: int) -> None:
        self._hash = crc32(history.tobytes())
        self._vocab_size = vocab_size

    def sample(self, output_index: int) -> int:
        self._hash = crc32(b"next", self._hash)
        return self._hash % self._vocab_size

    def accept(self, token: int) -> None:
        """What was chosen elsewhere changes nothing."""

    def close(self) -> None:
        """Nothing is held."""


class NullRuntime:
    """Implements ``Runtime`` for plain attention and, with a state size, for hybrids."""

    def __init__(
        self,
        sizes: Sizes,
        *,
        clock: VirtualClock,
        context_tokens: int,
        sequences: int,
        vocab_size: int,
        batch_tokens: int,
        ubatch_tokens: int,
    ) -> None:
        self._sizes = sizes
        self._clock = clock
        self.limits = RuntimeLimits(
            context_tokens=context_tokens,
            batch_tokens=batch_tokens,
            ubatch_tokens=ubatch_tokens,
            sequences=sequences,
            vocab_size=vocab_size,
            bytes_per_token=sizes.bytes_per_token,
        )
        self.capabilities = sizes.capabilities
        self.batch = NullBatch(batch_tokens)
        self._sharers = np.zeros(context_tokens, dtype=np.int32)
        """How many sequences hold each cell."""
        self._cells: dict[int, _Cells] = {}

    def keep_whole_sequences(self) -> None:
        raise AssertionError("segments of this runtime pass every self-test")

    def is_end_of_generation(self, token: int) -> bool:
        return token == NO_TOKEN

    def decode(self) -> DecodeStatus:
        if self.batch.size > self._free_cells:
            return DecodeStatus.NO_CELLS
        for sequence, tokens in self.batch.fed:
            self._append(sequence, tokens)
        self._clock.seconds += self.batch.size * self._sizes.prefill_seconds_per_token
        return DecodeStatus.OK

    @property
    def _free_cells(self) -> int:
        return int(np.count_nonzero(self._sharers == 0))

    def _append(self, sequence: int, tokens: int) -> None:
        taken = np.flatnonzero(self._sharers == 0)[:tokens].astype(np.int32)
        self._sharers[taken] = 1
        self._cells[sequence] = np.concatenate((self._cells.get(sequence, _NO_CELLS), taken))

    def prepare_sampler(self, params: SamplingParams) -> None:
        """Nothing takes long here."""

    def sampler(self, params: SamplingParams, history: TokenArray, mask: TokenMask | None = None) -> HashSampler:
        assert mask is None, "recorded calls are replayed without constraints"
        return HashSampler(history, self.limits.vocab_size)

    def logprobs(self, output_index: int, token: int, top: int) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
        raise AssertionError("no call of a replay asks for log-probabilities")

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None:
        shared = self._cells.get(source, _NO_CELLS)[start:end]
        self._sharers[shared] += 1
        self._cells[target] = shared.copy()

    def remove(self, sequence: int, start: int, end: int | None = None) -> None:
        cells = self._cells.get(sequence, _NO_CELLS)
        gone = cells[start:end]
        self._sharers[gone] -= 1
        self._cells[sequence] = np.concatenate((cells[:start], cells[start + gone.size :]))

    def length(self, sequence: int) -> int:
        return int(self._cells.get(sequence, _NO_CELLS).size)

    def export_rows(
        self, sequence: int, start: int, end: int, allocate: Callable[[int], memoryview | None]
    ) -> memoryview | None:
        assert 0 <= start < end <= self.length(sequence)
        return allocate((end - start) * self._sizes.bytes_per_token)

    def import_rows(self, sequence: int, rows: memoryview, start: int, end: int) -> bool:
        assert self.length(sequence) == start
        # The whole export goes through the scratch sequence before its other part is dropped.
        if rows.nbytes // self._sizes.bytes_per_token > self._free_cells:
            return False
        self._append(sequence, end - start)
        self._clock.seconds += rows.nbytes * self._sizes.restore_seconds_per_byte
        return True

    def export_state(self, sequence: int, allocate: Callable[[int], memoryview | None]) -> memoryview | None:
        return allocate(self._sizes.state_bytes)

    def import_state(self, sequence: int, state: memoryview, position: int) -> bool:
        self._clock.seconds += state.nbytes * self._sizes.restore_seconds_per_byte
        return self.length(sequence) == position

    def close(self) -> None:
        """Nothing is held."""
