"""Export and import of thin segments through a scratch sequence.

    live     0 ───────── start ════════ end ───── tip
                           │  seq_cp     │
    scratch                └────────────┘          get_data → blob, then emptied

    blob → set_data → scratch  first ── start ════ end ── last
                                          │ seq_cp  │
    live     0 ───────────────────────── start ════ end    and scratch emptied

The scratch id lies inside n_seq_max (a blob from an id outside cannot be read back) and is emptied
at once, since attention is paid up to the highest used cell.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorline.errors import BackendFailure
from anchorline.llama.library import api

_BYTES = ctypes.POINTER(ctypes.c_uint8)
_NO_FLAGS = 0
_ALL = -1

# A blob starts with magic, sequence id, number of streams and number of cells, 4 bytes each; then
# come the cells: position, number of ids, (12 bytes more on models with M-RoPE,) sequence id.
_HEADER_BYTES = 16
_CELL_SIZES = (12, 24)


class SegmentPort:
    """The way in and out of one context's KV pool. Owned by the engine thread."""

    def __init__(self, context: Any, *, scratch: int) -> None:
        self._context = context
        self._memory = api.llama_get_memory(context)
        self._scratch = scratch
        self._cell_bytes = 0

    def measure(self) -> float:
        """Learn the layout of a blob from sequence 0, which holds two tokens; return one token's bytes.

        Raises BackendFailure when llama.cpp exports in a layout that this code does not know.
        """
        one = self.export_rows(0, 0, 1, _fresh)
        two = self.export_rows(0, 0, 2, _fresh)
        assert one is not None
        assert two is not None
        for self._cell_bytes in _CELL_SIZES:
            if self._positions(np.frombuffer(two, np.uint8)) == (0, 2):
                return float(two.nbytes - one.nbytes)
        raise BackendFailure("llama.cpp exports KV cells in an unknown layout")

    def length(self, sequence: int) -> int:
        """Tokens held by ``sequence``. Raises BackendFailure unless they start at position 0."""
        tip: int = api.llama_memory_seq_pos_max(self._memory, sequence)
        if tip < 0:
            return 0
        first = api.llama_memory_seq_pos_min(self._memory, sequence)
        if first != 0:
            raise BackendFailure(f"sequence {sequence} holds positions {first} to {tip}, not from 0")
        return tip + 1

    def export_rows(
        self, sequence: int, start: int, end: int, allocate: Callable[[int], memoryview | None]
    ) -> memoryview | None:
        """See ``interface.Runtime.export_rows``."""
        # An empty blob would import "successfully" without clearing its destination.
        if not 0 <= start < end <= self.length(sequence):
            raise BackendFailure(f"sequence {sequence} cannot export [{start}, {end})")
        try:
            api.llama_memory_seq_cp(self._memory, sequence, self._scratch, start, end)
            nbytes: int = api.llama_state_seq_get_size_ext(self._context, self._scratch, _NO_FLAGS)
            target = allocate(nbytes)
            if target is None:
                return None
            view = np.frombuffer(target, np.uint8)
            assert view.nbytes == nbytes, "allocate gave a buffer of another size"
            assert view.flags.writeable, "allocate gave a read-only buffer"
            pointer = view.ctypes.data_as(_BYTES)
            copied = api.llama_state_seq_get_data_ext(self._context, pointer, nbytes, self._scratch, _NO_FLAGS)
        finally:
            self._empty_scratch()
        if copied != nbytes:
            raise BackendFailure(f"llama.cpp exported {copied} of {nbytes} bytes of sequence {sequence}")
        return target

    def import_rows(self, sequence: int, rows: memoryview, start: int, end: int) -> bool:
        """See ``interface.Runtime.import_rows``."""
        tip = self.length(sequence)
        if tip != start or not start < end:
            raise BackendFailure(f"sequence {sequence} ends at {tip}; it cannot take in [{start}, {end})")
        view = np.frombuffer(rows, np.uint8)
        span = self._positions(view)
        if span is None or not span[0] <= start < end <= span[1]:
            return False
        try:
            pointer = view.ctypes.data_as(_BYTES)
            read = api.llama_state_seq_set_data_ext(self._context, pointer, view.nbytes, self._scratch, _NO_FLAGS)
            if read != view.nbytes:
                return False
            api.llama_memory_seq_cp(self._memory, self._scratch, sequence, start, end)
        finally:
            self._empty_scratch()
        if self.length(sequence) == end:
            return True
        api.llama_memory_seq_rm(self._memory, sequence, start, _ALL)
        return False

    def _positions(self, blob: npt.NDArray[np.uint8]) -> tuple[int, int] | None:
        """The span of positions in ``blob``, each held once; None when they are anything else.

        llama.cpp takes any position, and a negative one would occupy its cell for ever: seq_rm
        does not see it, and every later import into the scratch sequence would fail.
        """
        if blob.nbytes < _HEADER_BYTES:
            return None
        _magic, _sequence, streams, count = blob[:_HEADER_BYTES].view(np.uint32).tolist()
        end = _HEADER_BYTES + count * self._cell_bytes
        if streams != 1 or count == 0 or end > blob.nbytes:
            return None
        positions = blob[_HEADER_BYTES:end].view(np.int32)[:: self._cell_bytes // 4]
        # Cells lie in the order of the pool, which after frees need not be that of the positions.
        first = int(positions.min())
        if first < 0 or not np.array_equal(np.sort(positions), np.arange(first, first + count)):
            return None
        return first, first + count

    def _empty_scratch(self) -> None:
        api.llama_memory_seq_rm(self._memory, self._scratch, _ALL, _ALL)


def _fresh(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))
