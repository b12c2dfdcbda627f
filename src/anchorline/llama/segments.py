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

from anchorline.errors import BackendFailure
from anchorline.llama.library import api

_BYTES = ctypes.POINTER(ctypes.c_uint8)
_NO_FLAGS = 0
_ALL = -1


class SegmentPort:
    """The way in and out of one context's KV pool. Owned by the engine thread."""

    def __init__(self, context: Any, *, scratch: int) -> None:
        self._context = context
        self._memory = api.llama_get_memory(context)
        self._scratch = scratch

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
        try:
            pointer = view.ctypes.data_as(_BYTES)
            read = api.llama_state_seq_set_data_ext(self._context, pointer, view.nbytes, self._scratch, _NO_FLAGS)
            if read != view.nbytes or not self._scratch_covers(start, end):
                return False
            api.llama_memory_seq_cp(self._memory, self._scratch, sequence, start, end)
        finally:
            self._empty_scratch()
        if self.length(sequence) == end:
            return True
        api.llama_memory_seq_rm(self._memory, sequence, start, _ALL)
        return False

    def _scratch_covers(self, start: int, end: int) -> bool:
        first: int = api.llama_memory_seq_pos_min(self._memory, self._scratch)
        last: int = api.llama_memory_seq_pos_max(self._memory, self._scratch)
        return 0 <= first <= start and last >= end - 1

    def _empty_scratch(self) -> None:
        api.llama_memory_seq_rm(self._memory, self._scratch, _ALL, _ALL)
