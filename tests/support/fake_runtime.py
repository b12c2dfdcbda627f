"""A runtime without a model whose output shows every wrong cell.

A cell holds its token and the running hash of the history up to it, computed from the cell before
it at decode time. What is generated depends on the hash of *every* cell of the sequence, so a
restore of wrong, missing or reordered rows changes the text.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from anchorline.errors import BackendFailure
from anchorline.llama.interface import (
    DecodeStatus,
    MemoryKind,
    RuntimeLimits,
    SamplingParams,
    TokenArray,
    TokenLogprob,
)

VOCAB_SIZE = 50
END_TOKEN = 49
CELL_BYTES = 12
_CELL = struct.Struct("<iII")
"""Position, token and hash of a cell, as exported."""


def chain_hash(previous: int, token: int) -> int:
    return crc32(token.to_bytes(4, "little"), previous)


def next_token(hashes: list[int], salt: int) -> int:
    """The token that follows cells with ``hashes``."""
    mixed = salt
    for value in hashes:
        mixed = crc32(value.to_bytes(4, "little"), mixed)
    return mixed % VOCAB_SIZE


def expected_reply(prompt: list[int], max_tokens: int, *, salt: int = 0) -> list[int]:
    """What an undisturbed run generates; ends before END_TOKEN."""
    hashes: list[int] = []
    for token in prompt:
        hashes.append(chain_hash(hashes[-1] if hashes else 0, token))
    reply: list[int] = []
    while len(reply) < max_tokens:
        token = next_token(hashes, salt)
        if token == END_TOKEN:
            break
        reply.append(token)
        hashes.append(chain_hash(hashes[-1], token))
    return reply


@dataclass(slots=True, eq=False)
class Cell:
    token: int
    hash: int


@dataclass(slots=True)
class Faults:
    """Chances of each failure, drawn from one seeded source."""

    random: random.Random = field(default_factory=lambda: random.Random(0))
    decode: float = 0.0
    export: float = 0.0
    import_: float = 0.0
    import_broken: float = 0.0
    """An import that raises and leaves cells of its own behind."""

    def strikes(self, chance: float) -> bool:
        return chance > 0 and self.random.random() < chance


class FakeBatch:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[tuple[int, int, int, bool]] = []

    def clear(self) -> None:
        self.entries.clear()

    @property
    def room(self) -> int:
        return self.capacity - len(self.entries)

    @property
    def size(self) -> int:
        return len(self.entries)

    def add(self, tokens: TokenArray, *, start: int, sequence: int, output: bool) -> int:
        assert tokens.size
        assert tokens.size <= self.room
        for offset, token in enumerate(tokens.tolist()):
            wants_output = output and offset == tokens.size - 1
            self.entries.append((token, start + offset, sequence, wants_output))
        return len(self.entries) - 1


class FakeSampler:
    def __init__(self, runtime: FakeRuntime, salt: int) -> None:
        self._runtime = runtime
        self._salt = salt

    def sample(self, output_index: int) -> int:
        return next_token(self._runtime.outputs[output_index], self._salt)

    def close(self) -> None:
        pass


class FakeRuntime:
    """Implements ``Runtime``; refuses what llama.cpp refuses, and asserts what it would corrupt."""

    def __init__(
        self, *, context_tokens: int = 400, sequences: int = 5, batch_tokens: int = 16, faults: Faults | None = None
    ) -> None:
        self.limits = RuntimeLimits(
            context_tokens=context_tokens,
            batch_tokens=batch_tokens,
            ubatch_tokens=batch_tokens // 2,
            sequences=sequences,
            vocab_size=VOCAB_SIZE,
            bytes_per_token=CELL_BYTES,
        )
        self.kind = MemoryKind.PLAIN
        self.batch = FakeBatch(batch_tokens)
        self.faults = faults or Faults()
        self.outputs: dict[int, list[int]] = {}
        self.cells: dict[int, list[Cell]] = {}
        self.decoded_tokens = 0
        self.chunks: list[tuple[int, int, int]] = []
        """(sequence, start, end) of every span decoded."""
        self.closed = False

    @property
    def used_cells(self) -> int:
        return len({id(cell) for cells in self.cells.values() for cell in cells})

    def is_end_of_generation(self, token: int) -> bool:
        return token == END_TOKEN

    def decode(self) -> DecodeStatus:
        if self.used_cells + self.batch.size > self.limits.context_tokens:
            return DecodeStatus.NO_CELLS
        if self.faults.strikes(self.faults.decode):
            raise BackendFailure("injected: decode")
        self.outputs.clear()
        for index, (token, position, sequence, output) in enumerate(self.batch.entries):
            cells = self.cells.setdefault(sequence, [])
            assert 0 <= sequence < self.limits.sequences
            assert position == len(cells), "positions must follow each other"
            cells.append(Cell(token, chain_hash(cells[-1].hash if cells else 0, token)))
            self.decoded_tokens += 1
            if output:
                self.outputs[index] = [cell.hash for cell in cells]
        self._note_chunks()
        return DecodeStatus.OK

    def _note_chunks(self) -> None:
        spans: dict[int, list[int]] = {}
        for _, position, sequence, _ in self.batch.entries:
            spans.setdefault(sequence, []).append(position)
        self.chunks.extend((seq, positions[0], positions[-1] + 1) for seq, positions in spans.items())

    def sampler(self, params: SamplingParams, history: TokenArray) -> FakeSampler:
        return FakeSampler(self, params.seed or 0)

    def logprobs(self, output_index: int, token: int, top: int) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
        chosen = TokenLogprob(token, -0.5)
        return chosen, (chosen,) * top

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None:
        assert not self.cells.get(target)
        assert start == 0
        assert end <= len(self.cells[source])
        self.cells[target] = self.cells[source][start:end]

    def remove(self, sequence: int, start: int, end: int | None = None) -> None:
        cells = self.cells.get(sequence, [])
        del cells[start:end]

    def length(self, sequence: int) -> int:
        return len(self.cells.get(sequence, []))

    def export_rows(
        self, sequence: int, start: int, end: int, allocate: Callable[[int], memoryview | None]
    ) -> memoryview | None:
        cells = self.cells[sequence][start:end]
        assert len(cells) == end - start > 0
        memory = allocate(len(cells) * CELL_BYTES)
        if memory is None:
            return None
        if self.faults.strikes(self.faults.export):
            raise BackendFailure("injected: export")
        for offset, cell in enumerate(cells):
            _CELL.pack_into(memory, offset * CELL_BYTES, start + offset, cell.token, cell.hash)
        return memory

    def import_rows(self, sequence: int, rows: memoryview, start: int, end: int) -> bool:
        live = self.cells.setdefault(sequence, [])
        assert len(live) == start
        stored = [_CELL.unpack_from(rows, at) for at in range(0, rows.nbytes, CELL_BYTES)]
        if self.used_cells + len(stored) > self.limits.context_tokens or self.faults.strikes(self.faults.import_):
            return False
        if self.faults.strikes(self.faults.import_broken):
            live.append(Cell(0, 0))
            raise BackendFailure("injected: import")
        chosen = [Cell(token, value) for position, token, value in stored if start <= position < end]
        assert len(chosen) == end - start
        live.extend(chosen)
        return True

    def close(self) -> None:
        self.closed = True


def tokens_of(ids: list[int]) -> TokenArray:
    return np.asarray(ids, dtype=np.int32)
