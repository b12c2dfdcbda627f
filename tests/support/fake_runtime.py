"""A runtime without a model whose output shows every wrong cell.

A cell holds its token and the running hash of the history up to it, computed from the cell before
it at decode time. What is generated depends on the hash of *every* cell of the sequence, so a
restore of wrong, missing or reordered rows changes the text. Of a stateful kind it depends on a
state as well, which only decoding or the right import brings forward.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np

from anchorline.errors import BackendFailure
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

VOCAB_SIZE = 50
END_TOKEN = 49
CELL_BYTES = 12
STATE_BYTES = 40
FIRST_STATE = 77
_STATE = struct.Struct("<iI32x")
"""Tokens and hash of a state, as exported."""
_CELL = struct.Struct("<iII")
"""Position, token and hash of a cell, as exported."""


def chain_hash(previous: int, token: int) -> int:
    return crc32(token.to_bytes(4, "little"), previous)


def capabilities_of(kind: MemoryKind) -> Capabilities:
    stateful = kind is not MemoryKind.PLAIN
    return Capabilities(
        kind=kind,
        has_rows=kind is not MemoryKind.RECURRENT,
        has_state=stateful,
        state_bytes=STATE_BYTES if stateful else 0,
    )


def next_token(hashes: list[int], salt: int) -> int:
    """The token that follows cells with ``hashes``."""
    mixed = salt
    for value in hashes:
        mixed = crc32(value.to_bytes(4, "little"), mixed)
    return mixed % VOCAB_SIZE


def masked_token(token: int, allowed: TokenArray) -> int:
    """What becomes of ``token`` under a mask: still a function of every cell."""
    return int(allowed[token % allowed.size])


def outlook(hashes: list[int], state: int, kind: MemoryKind) -> list[int]:
    """What the next token depends on: the cells, the state, or both."""
    if kind is MemoryKind.PLAIN:
        return hashes
    return [state] if kind is MemoryKind.RECURRENT else [*hashes, state]


def expected_reply(
    prompt: list[int], max_tokens: int, *, salt: int = 0, kind: MemoryKind = MemoryKind.PLAIN
) -> list[int]:
    """What an undisturbed run generates; ends before END_TOKEN."""
    hashes: list[int] = []
    state = FIRST_STATE
    reply: list[int] = []
    for token in prompt:
        hashes.append(chain_hash(hashes[-1] if hashes else 0, token))
        state = chain_hash(state, token)
    while len(reply) < max_tokens:
        token = next_token(outlook(hashes, state, kind), salt)
        if token == END_TOKEN:
            break
        reply.append(token)
        hashes.append(chain_hash(hashes[-1], token))
        state = chain_hash(state, token)
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
    state: float = 0.0
    """Both ways: an export that raises, an import that is refused."""
    import_: float = 0.0
    fork: float = 0.0
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
    def __init__(self, runtime: FakeRuntime, salt: int, mask: TokenMask | None) -> None:
        self._runtime = runtime
        self._salt = salt
        self._mask = mask
        self.accepted: list[int] = []

    def sample(self, output_index: int) -> int:
        token = next_token(self._runtime.outputs[output_index], self._salt)
        if self._mask is not None:
            token = masked_token(token, self._mask.allowed())
        self.accept(token)
        return token

    def accept(self, token: int) -> None:
        if self._mask is not None:
            self._mask.accept(token)
        self.accepted.append(token)

    def close(self) -> None:
        pass


class FakeRuntime:
    """Implements ``Runtime``; refuses what llama.cpp refuses, and asserts what it would corrupt."""

    def __init__(
        self,
        *,
        context_tokens: int = 400,
        sequences: int = 5,
        batch_tokens: int = 16,
        faults: Faults | None = None,
        kind: MemoryKind = MemoryKind.PLAIN,
    ) -> None:
        self.limits = RuntimeLimits(
            context_tokens=context_tokens,
            batch_tokens=batch_tokens,
            ubatch_tokens=batch_tokens // 2,
            sequences=sequences,
            vocab_size=VOCAB_SIZE,
            bytes_per_token=CELL_BYTES if kind is not MemoryKind.RECURRENT else 0,
        )
        self.capabilities = capabilities_of(kind)
        self.states: dict[int, tuple[int, int]] = {}
        """Of stateful kinds: tokens and hash at the tip of each sequence."""
        self.batch = FakeBatch(batch_tokens)
        self.faults = faults or Faults()
        self.outputs: dict[int, list[int]] = {}
        self.cells: dict[int, list[Cell]] = {}
        self.decoded_tokens = 0
        self.chunks: list[tuple[int, int, int]] = []
        """(sequence, start, end) of every span decoded."""
        self.longest_chain = 0
        """Most imports that one sequence was put together from."""
        self._chain: dict[int, int] = {}
        self.closed = False
        self.holds_cells = kind is not MemoryKind.RECURRENT
        self.whole = False
        """Whether states are whole sequences: cells and all."""

    def keep_whole_sequences(self) -> None:
        self.whole = True
        self.capabilities = replace(self.capabilities, has_rows=False, has_state=True)

    @property
    def used_cells(self) -> int:
        return len({id(cell) for cells in self.cells.values() for cell in cells})

    def is_end_of_generation(self, token: int) -> bool:
        return token == END_TOKEN

    def decode(self) -> DecodeStatus:
        if self.used_cells + self.batch.size * self.holds_cells > self.limits.context_tokens:
            return DecodeStatus.NO_CELLS
        if self.faults.strikes(self.faults.decode):
            raise BackendFailure("injected: decode")
        self.outputs.clear()
        for index, (token, position, sequence, output) in enumerate(self.batch.entries):
            assert 0 <= sequence < self.limits.sequences
            assert position == self.length(sequence), "positions must follow each other"
            hashes = self._append(sequence, token)
            self.decoded_tokens += 1
            if output:
                _, state = self.states.get(sequence, (0, FIRST_STATE))
                self.outputs[index] = outlook(hashes, state, self.capabilities.kind)
        self._note_chunks()
        return DecodeStatus.OK

    def _append(self, sequence: int, token: int) -> list[int]:
        """Bring the cells and the state of a sequence forward by one token; the hashes of its cells."""
        self._chain.pop(sequence, None)
        cells = self.cells.setdefault(sequence, [])
        if self.capabilities.has_state:
            count, state = self.states.get(sequence, (0, FIRST_STATE))
            assert not self.capabilities.has_rows or count == len(cells), "a restored chain without its state"
            self.states[sequence] = (count + 1, chain_hash(state, token))
        if self.holds_cells:
            cells.append(Cell(token, chain_hash(cells[-1].hash if cells else 0, token)))
        return [cell.hash for cell in cells]

    def _note_chunks(self) -> None:
        spans: dict[int, list[int]] = {}
        for _, position, sequence, _ in self.batch.entries:
            spans.setdefault(sequence, []).append(position)
        self.chunks.extend((seq, positions[0], positions[-1] + 1) for seq, positions in spans.items())

    def prepare_sampler(self, params: SamplingParams) -> None:
        """Nothing takes long here."""

    def sampler(self, params: SamplingParams, history: TokenArray, mask: TokenMask | None = None) -> FakeSampler:
        return FakeSampler(self, params.seed or 0, mask)

    def logprobs(self, output_index: int, token: int, top: int) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
        chosen = TokenLogprob(token, -next_token(self.outputs[output_index], token) / 10)
        return chosen, (chosen,) * top

    def copy_sequence(self, source: int, target: int, start: int, end: int) -> None:
        if self.faults.strikes(self.faults.fork):
            raise BackendFailure("injected: fork")
        assert not self.length(target)
        assert start == 0
        assert end <= self.length(source)
        assert self.capabilities.can_trim or end == self.length(source), "stateful models fork at the tip alone"
        self.cells[target] = self.cells.get(source, [])[start:end]
        if self.capabilities.has_state:
            self.states[target] = self.states[source]

    def remove(self, sequence: int, start: int, end: int | None = None) -> None:
        assert self.capabilities.can_trim or (start == 0 and end is None), "stateful models cannot be trimmed"
        cells = self.cells.get(sequence, [])
        del cells[start:end]
        self._chain.pop(sequence, None)
        self.states.pop(sequence, None)

    def length(self, sequence: int) -> int:
        if self.capabilities.has_state:
            return self.states.get(sequence, (0, 0))[0]
        return len(self.cells.get(sequence, []))

    def export_rows(
        self, sequence: int, start: int, end: int, allocate: Callable[[int], memoryview | None]
    ) -> memoryview | None:
        if not self.capabilities.has_rows:
            return memoryview(b"")
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
        self._chain[sequence] = self._chain.get(sequence, 0) + 1
        self.longest_chain = max(self.longest_chain, self._chain[sequence])
        if not self.capabilities.has_rows:
            return True
        live = self.cells.setdefault(sequence, [])
        assert len(live) == start
        self.states.pop(sequence, None)
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

    def export_state(self, sequence: int, allocate: Callable[[int], memoryview | None]) -> memoryview | None:
        cells = self.cells.get(sequence, []) if self.whole else []
        memory = allocate(STATE_BYTES + len(cells) * CELL_BYTES)
        if memory is None:
            return None
        if self.faults.strikes(self.faults.state):
            raise BackendFailure("injected: state export")
        _STATE.pack_into(memory, 0, *self.states[sequence])
        for offset, cell in enumerate(cells):
            _CELL.pack_into(memory, STATE_BYTES + offset * CELL_BYTES, offset, cell.token, cell.hash)
        return memory

    def import_state(self, sequence: int, state: memoryview, position: int) -> bool:
        count, value = _STATE.unpack_from(state)
        if self.faults.strikes(self.faults.state) or count != position:
            return False
        if self.capabilities.has_rows and len(self.cells.get(sequence, [])) != position:
            return False
        self.states[sequence] = (count, value)
        if self.whole:
            stored = [_CELL.unpack_from(state, at) for at in range(STATE_BYTES, state.nbytes, CELL_BYTES)]
            self.cells[sequence] = [Cell(token, kept) for _, token, kept in stored]
        return True

    def close(self) -> None:
        self.closed = True


def tokens_of(ids: list[int]) -> TokenArray:
    return np.asarray(ids, dtype=np.int32)
