"""Export and import of thin segments through a scratch sequence, and of states.

    live     0 ───────── start ════════ end ───── tip
                           │  seq_cp     │
    scratch                └────────────┘          its state part emptied, get_data → segment

    segment → set_data → scratch  first ── start ════ end ── last
                                             │ seq_cp  │
    live     0 ──────────────────────────── start ════ end    and scratch emptied

A segment is [header][rows][empty state part]. A state is what PARTIAL_ONLY exports of the *live*
sequence: a copied span holds only what it covers of a window. Restoring is the rows of every
segment, then one state.

The scratch id lies inside n_seq_max (a blob from an id outside cannot be read back) and is emptied
at once, since attention is paid up to the highest used cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anchorline.errors import BackendFailure
from anchorline.llama import blobs, library
from anchorline.llama.blobs import FULL, HEADER_BYTES, PARTIAL, Bytes, MemoryLayout
from anchorline.llama.interface import Capabilities
from anchorline.llama.library import api

_ALL = -1


class SegmentPort:
    """The way in and out of one context's KV pool. Owned by the engine thread."""

    def __init__(self, context: Any, *, scratch: int, capabilities: Capabilities, layout: MemoryLayout) -> None:
        self._context = context
        self._memory = api.llama_get_memory(context)
        self._scratch = scratch
        self._has_rows = capabilities.has_rows
        self._has_state = capabilities.has_state
        self._layout = layout
        self._staging = np.empty(0, np.uint8)
        header = blobs.export_fresh(context, scratch, FULL)[:HEADER_BYTES]
        self._empty_state = np.concatenate([header, np.frombuffer(layout.empty_state, np.uint8)])
        self._refused_window = np.concatenate([header, np.array([1, 1, 0, 0], np.uint32).view(np.uint8)])
        """A window of one cell that belongs to no sequence: llama.cpp empties the window, then refuses it."""
        self.incomplete: dict[int, int] = {}
        """Sequence → end of the rows imported so far, while its state is still missing."""

    def length(self, sequence: int) -> int:
        """Tokens held by ``sequence``, 0 while its state is missing.

        Raises BackendFailure on positions that cannot be continued.
        """
        tip: int = api.llama_memory_seq_pos_max(self._memory, sequence)
        if tip < 0:
            return 0
        first: int = api.llama_memory_seq_pos_min(self._memory, sequence)
        if self._layout.opaque:
            sound = first <= tip
        elif not self._has_state:
            sound = first == 0
        elif self._layout.recurrent_bytes:
            # A recurrent state has one position; rows and state at different tips give min > max.
            sound = first == tip
        else:
            sound = first <= tip and self._layout.window_suffices(first, tip + 1)
        if not sound:
            raise BackendFailure(f"sequence {sequence} holds positions {first} to {tip}, which cannot be continued")
        return tip + 1

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Let ``target`` share the cells [start, end) of ``source``; a window is copied.

        Window cells that two sequences share are never recycled: a fork of a sequence that fills
        the window's cells could not decode one token.
        """
        api.llama_memory_seq_cp(self._memory, source, target, start, end)
        if not self._layout.window_row_bytes:
            return
        self._drop_state(target)
        nbytes = blobs.export_bytes(self._context, source, PARTIAL)
        if self._staging.nbytes < nbytes:
            self._staging = np.empty(nbytes, np.uint8)
        window = self._staging[:nbytes]
        written = blobs.export_into(self._context, source, PARTIAL, window)
        if written != nbytes or not blobs.import_from(self._context, target, PARTIAL, window):
            api.llama_memory_seq_rm(self._memory, target, _ALL, _ALL)
            raise BackendFailure(f"llama.cpp could not copy the window of sequence {source} to {target}")

    def forget(self, sequence: int) -> None:
        """Note that ``sequence`` was emptied."""
        self.incomplete.pop(sequence, None)

    def export_rows(
        self, sequence: int, start: int, end: int, allocate: Callable[[int], memoryview | None]
    ) -> memoryview | None:
        """See ``interface.Runtime.export_rows``."""
        if not self._has_rows:
            return memoryview(b"")
        # An empty blob would import "successfully" without clearing its destination.
        if not 0 <= start < end <= self.length(sequence):
            raise BackendFailure(f"sequence {sequence} cannot export [{start}, {end})")
        try:
            api.llama_memory_seq_cp(self._memory, sequence, self._scratch, start, end)
            self._drop_state(self._scratch)
            nbytes = blobs.export_bytes(self._context, self._scratch, FULL)
            if nbytes != self._layout.rows_bytes(end - start):
                raise BackendFailure(f"sequence {sequence} does not hold each of [{start}, {end}) once")
            return self._export(self._scratch, FULL, nbytes, allocate)
        finally:
            self._empty_scratch()

    def import_rows(self, sequence: int, rows: memoryview, start: int, end: int) -> bool:
        """See ``interface.Runtime.import_rows``."""
        tip = self.incomplete.get(sequence, 0) if self._has_state else self.length(sequence)
        if tip != start or not start < end or (self._has_state and self.length(sequence) > 0):
            raise BackendFailure(f"sequence {sequence} ends at {tip}; it cannot take in [{start}, {end})")
        if self._has_rows:
            view = np.frombuffer(rows, np.uint8)
            span = self._layout.rows_span(view)
            if span is None or not span[0] <= start < end <= span[1]:
                return False
            try:
                if not blobs.import_from(self._context, self._scratch, FULL, view):
                    return False
                api.llama_memory_seq_cp(self._memory, self._scratch, sequence, start, end)
            finally:
                self._empty_scratch()
        if self._has_state:
            self.incomplete[sequence] = end
            return True
        if self.length(sequence) == end:
            return True
        api.llama_memory_seq_rm(self._memory, sequence, start, _ALL)
        return False

    def export_state(self, sequence: int, allocate: Callable[[int], memoryview | None]) -> memoryview | None:
        """See ``interface.Runtime.export_state``."""
        assert self._has_state, "the model has no state"
        position = self.length(sequence)
        if position == 0:
            raise BackendFailure(f"sequence {sequence} is empty and has no state")
        flags = self._layout.state_flags
        nbytes = blobs.export_bytes(self._context, sequence, flags)
        state = self._export(sequence, flags, nbytes, allocate)
        if state is not None and not self._resumes_at(np.frombuffer(state, np.uint8), position):
            raise BackendFailure(
                f"llama.cpp exported a state of sequence {sequence} that is not one of {position} tokens"
            )
        return state

    def import_state(self, sequence: int, state: memoryview, position: int) -> bool:
        """See ``interface.Runtime.import_state``."""
        assert self._has_state, "the model has no state"
        if self._has_rows and self.incomplete.get(sequence, 0) != position:
            raise BackendFailure(
                f"sequence {sequence} holds rows of {self.incomplete.get(sequence, 0)} tokens, not {position}"
            )
        view = np.frombuffer(state, np.uint8)
        if not self._resumes_at(view, position):
            return False
        if not blobs.import_from(self._context, sequence, self._layout.state_flags, view):
            return False
        self.incomplete.pop(sequence, None)
        return self._holds(sequence, position)

    def _resumes_at(self, state: Bytes, position: int) -> bool:
        return self._layout.opaque or self._layout.state_end(state) == position

    def _holds(self, sequence: int, position: int) -> bool:
        """Whether rows and state of ``sequence`` are those of ``position`` tokens."""
        try:
            if self.length(sequence) != position:
                return False
        except BackendFailure:
            return False
        if not self._has_rows:
            return True
        sizes = [blobs.export_bytes(self._context, sequence, flags) for flags in (FULL, PARTIAL)]
        return sizes[0] - sizes[1] == self._layout.rows_fixed_bytes + position * self._layout.row_bytes

    def _export(
        self, sequence: int, flags: int, nbytes: int, allocate: Callable[[int], memoryview | None]
    ) -> memoryview | None:
        target = allocate(nbytes)
        if target is None:
            return None
        view = np.frombuffer(target, np.uint8)
        assert view.nbytes == nbytes, "allocate gave a buffer of another size"
        assert view.flags.writeable, "allocate gave a read-only buffer"
        copied = blobs.export_into(self._context, sequence, flags, view)
        if copied != nbytes:
            raise BackendFailure(f"llama.cpp exported {copied} of {nbytes} bytes of sequence {sequence}")
        return target

    def _drop_state(self, sequence: int) -> None:
        """Empty the state part of ``sequence`` and leave its rows, so that no state is copied with them."""
        if self._layout.window_row_bytes:
            with library.log.quiet():
                blobs.import_from(self._context, sequence, PARTIAL, self._refused_window)
        if self._layout.recurrent_bytes:
            blobs.import_from(self._context, sequence, PARTIAL, self._empty_state)

    def _empty_scratch(self) -> None:
        api.llama_memory_seq_rm(self._memory, self._scratch, _ALL, _ALL)
