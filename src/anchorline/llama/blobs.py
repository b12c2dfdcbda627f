"""The bytes that llama.cpp exports for a sequence, as far as they are sized, checked and cut here.

    full     [magic, sequence][rows part][state part]
    partial  [magic, sequence][state part]      with PARTIAL_ONLY; a plain model has no state part and
                                                ignores the flag, a recurrent one has no rows part

The rows part is a KV body. The state part is a KV body of the window's cells, or a recurrent body,
or both in this order:

    KV body         streams (1), cells (n), n × [position, ids (1), (12 bytes,) sequence], all layers' rows
    recurrent body  cells (1), position, ids (0), all layers' rows

llama.cpp checks the types and sizes of rows, but takes any position and aborts the process on some
counts, so both are checked before it sees a blob.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorline.llama.library import api

Bytes = npt.NDArray[np.uint8]

FULL = 0
PARTIAL = 1
"""LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY."""

HEADER_BYTES = 8
KV_HEADER_BYTES = 8
RECURRENT_HEADER_BYTES = 12
RECURRENT_CELL_BYTES = 8
CELL_SIZES = (12, 24)
"""Bytes of a cell in a KV body: without and with what M-RoPE and per-layer embeddings keep of it."""

_MAGIC = 0xAF143CD8
_POINTER = ctypes.POINTER(ctypes.c_uint8)


def export_bytes(context: Any, sequence: int, flags: int) -> int:
    """Size that ``export_into`` needs; nothing is copied to find it out."""
    size: int = api.llama_state_seq_get_size_ext(context, sequence, flags)
    return size


def export_into(context: Any, sequence: int, flags: int, target: Bytes) -> int:
    """Export ``sequence``; returns the bytes written, 0 when llama.cpp refuses."""
    written: int = api.llama_state_seq_get_data_ext(
        context, target.ctypes.data_as(_POINTER), target.nbytes, sequence, flags
    )
    return written


def export_fresh(context: Any, sequence: int, flags: int) -> Bytes:
    blob = np.empty(export_bytes(context, sequence, flags), np.uint8)
    written = export_into(context, sequence, flags, blob)
    return blob[:written]


def import_from(context: Any, sequence: int, flags: int, blob: Bytes) -> bool:
    """Import into ``sequence``, whose own cells of that part go first; True when all bytes were taken.

    A refusal leaves that part empty. So does not a blob without cells, which KV bodies skip.
    """
    read: int = api.llama_state_seq_set_data_ext(context, blob.ctypes.data_as(_POINTER), blob.nbytes, sequence, flags)
    return read == blob.nbytes


def cell_span(blob: Bytes, offset: int, cell_bytes: int) -> tuple[int, int] | None:
    """The span [first, end) of positions in the KV body at ``offset``, each held once; else None.

    llama.cpp takes any position, and a negative one would occupy its cell for ever: seq_rm does
    not see it, and every later import into the same sequence would fail.
    """
    begin = offset + KV_HEADER_BYTES
    if blob.nbytes < begin:
        return None
    streams, count = blob[offset:begin].view(np.uint32).tolist()
    end = begin + count * cell_bytes
    if streams != 1 or count == 0 or end > blob.nbytes:
        return None
    positions = blob[begin:end].view(np.int32)[:: cell_bytes // 4]
    first = int(positions.min())
    span = np.arange(first, first + count)
    # Cells lie in the order of the pool, which after frees need not be that of the positions.
    if first < 0 or not (np.array_equal(positions, span) or np.array_equal(np.sort(positions), span)):
        return None
    return first, first + count


def recurrent_end(blob: Bytes, offset: int) -> int | None:
    """The position after the last token of the recurrent body at ``offset``; None unless it is one cell's.

    On two cells llama.cpp would abort the process.
    """
    if blob.nbytes < offset + RECURRENT_HEADER_BYTES:
        return None
    count, position, ids = blob[offset : offset + RECURRENT_HEADER_BYTES].view(np.int32).tolist()
    return position + 1 if count == 1 and ids == 0 and position >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayout:
    """What the blobs of one context look like; measured by ``capabilities.probe``."""

    cell_bytes: int = 0
    row_bytes: int = 0
    """Of one token in the rows part, its cell included; 0 without rows."""
    rows_fixed_bytes: int = 0
    """Of the rows part besides its tokens."""
    window_tokens: int = 0
    """Length of the sliding window; 0 without one in the state part."""
    window_row_bytes: int = 0
    window_fixed_bytes: int = 0
    recurrent_bytes: int = 0
    """Of the recurrent body with its one cell; 0 without one."""
    recurrent_empty_bytes: int = 0
    empty_state: bytes = b""
    """The state part of an empty sequence."""
    opaque: bool = False
    """The memory is not understood: a state is the whole sequence, and only llama.cpp can check it."""

    @property
    def state_flags(self) -> int:
        return FULL if self.opaque else PARTIAL

    @property
    def recurrent_payload_bytes(self) -> int:
        """What one recurrent state takes in the pool."""
        return max(0, self.recurrent_bytes - self.recurrent_empty_bytes - RECURRENT_CELL_BYTES)

    def rows_bytes(self, tokens: int) -> int:
        """Size of a segment of so many tokens: header, rows part, empty state part."""
        return HEADER_BYTES + self.rows_fixed_bytes + tokens * self.row_bytes + len(self.empty_state)

    def state_bytes(self, tokens: int) -> int:
        """Size of the state of a sequence of so many tokens."""
        size = HEADER_BYTES + self.recurrent_bytes
        if self.window_row_bytes:
            size += self.window_fixed_bytes + min(tokens, self.window_tokens) * self.window_row_bytes
        return size

    def rows_span(self, blob: Bytes) -> tuple[int, int] | None:
        """The span of positions of a segment; None unless it is one, whole and with an empty state part."""
        span = cell_span(blob, HEADER_BYTES, self.cell_bytes)
        if span is None or not _is_blob(blob) or blob.nbytes != self.rows_bytes(span[1] - span[0]):
            return None
        tail = blob[blob.nbytes - len(self.empty_state) :]
        return span if tail.tobytes() == self.empty_state else None

    def state_end(self, blob: Bytes) -> int | None:
        """The position at which a state resumes; None unless it is one, whole."""
        if not _is_blob(blob) or self.opaque:
            return None
        end = None
        if self.recurrent_bytes:
            end = (
                recurrent_end(blob, blob.nbytes - self.recurrent_bytes) if blob.nbytes > self.recurrent_bytes else None
            )
            if end is None:
                return None
        if self.window_row_bytes:
            span = cell_span(blob, HEADER_BYTES, self.cell_bytes)
            if span is None or not self._is_window(*span) or end not in (None, span[1]):
                return None
            cells = (span[1] - span[0]) * self.window_row_bytes
            expected = HEADER_BYTES + self.window_fixed_bytes + cells + self.recurrent_bytes
            return span[1] if blob.nbytes == expected else None
        return end if blob.nbytes == HEADER_BYTES + self.recurrent_bytes else None

    def _is_window(self, first: int, end: int) -> bool:
        """Whether [first, end) is all that a window at ``end`` can see: the last tokens, or those of a chunk."""
        return first in (max(0, end - self.window_tokens), (end - 1) // self.window_tokens * self.window_tokens)

    def window_suffices(self, first: int, end: int) -> bool:
        """Whether live window cells from ``first`` on are enough to decode the token at ``end``."""
        return first <= max(0, end - self.window_tokens + 1) or first <= end // self.window_tokens * self.window_tokens


def _is_blob(blob: Bytes) -> bool:
    return blob.nbytes > HEADER_BYTES and int(blob[:4].view(np.uint32)[0]) == _MAGIC
