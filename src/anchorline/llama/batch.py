"""The batch that a runtime decodes, filled through numpy views of the arrays llama.cpp reads."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from anchorline.llama.interface import TokenArray
from anchorline.llama.library import api


class LlamaBatch:
    """Implements ``interface.Batch``.

    The arrays are numpy's own and live as long as this object; ``native`` points into them, so
    llama.cpp neither allocates nor frees anything for it. Each token belongs to one sequence.
    """

    def __init__(self, capacity: int, *, outputs: int) -> None:
        self._capacity = capacity
        self._outputs_left = self._outputs = outputs
        self._size = 0
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequence_counts = np.ones(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        # seq_id is an array of pointers to arrays; each points at its own element of _sequences.
        addresses = self._sequences.ctypes.data + np.arange(capacity, dtype=np.uintp) * self._sequences.itemsize
        self._sequence_pointers = addresses.astype(np.uintp)
        self._logits = np.zeros(capacity, np.int8)
        self._ramp = np.arange(capacity, dtype=np.int32)
        self.native: Any = api.llama_batch(
            0,
            _pointer(self._tokens, ctypes.c_int32),
            None,
            _pointer(self._positions, ctypes.c_int32),
            _pointer(self._sequence_counts, ctypes.c_int32),
            _pointer(self._sequence_pointers, ctypes.POINTER(ctypes.c_int32)),
            _pointer(self._logits, ctypes.c_int8),
        )
        """The llama_batch to pass to llama_decode."""
        self.spans: list[tuple[int, int, int]] = []
        """Sequence, start and end of what was added since ``clear``."""

    def clear(self) -> None:
        self._size = 0
        self._outputs_left = self._outputs
        self.native.n_tokens = 0
        self.spans.clear()

    @property
    def room(self) -> int:
        return self._capacity - self._size

    @property
    def size(self) -> int:
        return self._size

    def add(self, tokens: TokenArray, *, start: int, sequence: int, output: bool) -> int:
        begin = self._size
        count = len(tokens)
        end = begin + count
        assert 0 < count <= self._capacity - begin, "the batch has no room"
        if output:
            # llama.cpp has reserved memory for so many outputs and aborts the process on more.
            assert self._outputs_left > 0, "the batch has no room for another output"
            self._outputs_left -= 1
        if count == 1:
            self._tokens[begin] = tokens[0]
            self._positions[begin] = start
            self._sequences[begin] = sequence
        else:
            self._tokens[begin:end] = tokens
            np.add(self._ramp[:count], start, out=self._positions[begin:end])
            self._sequences[begin:end] = sequence
            self._logits[begin:end] = 0
        self._logits[end - 1] = output
        self._size = self.native.n_tokens = end
        self.spans.append((sequence, start, start + count))
        return end - 1


def _pointer(array: Any, kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
