"""How the loaded model's memory behaves: asked of the model, then probed on a context of it.

The one place that decides; everybody else reads ``interface.Capabilities``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorline.llama import blobs, library
from anchorline.llama.blobs import CELL_SIZES, FULL, HEADER_BYTES, KV_HEADER_BYTES, PARTIAL, Bytes, MemoryLayout
from anchorline.llama.interface import Capabilities, MemoryKind
from anchorline.llama.library import api

PROBE_TOKENS = 2
_ALL = -1


def memory_kind(model: Any) -> MemoryKind:
    """What the model says of itself; ``model`` is the llama_model pointer."""
    windowed = api.llama_model_n_swa(model) > 0
    if api.llama_model_is_recurrent(model):
        return MemoryKind.RECURRENT
    if api.llama_model_is_hybrid(model):
        return MemoryKind.HYBRID_WINDOWED if windowed else MemoryKind.HYBRID
    return MemoryKind.WINDOWED if windowed else MemoryKind.PLAIN


def probe(context: Any, *, model: Any, scratch: int) -> tuple[Capabilities, MemoryLayout]:
    """Measure the memory of ``context``, whose sequence 0 holds two tokens; ``scratch`` is empty, and is again.

    When what is found is not what the model says, a warning is logged and the safer kind holds:
    the one found if the model says plain, else whole sequences as states, which any memory allows.
    """
    said = memory_kind(model)
    found = _measure(context, scratch=scratch)
    kind, layout = MemoryKind.RECURRENT, MemoryLayout(opaque=True)
    found_kind = found.kind
    if found_kind is not None and (found_kind is said or said is MemoryKind.PLAIN):
        guess = _layout(found, window_tokens=api.llama_model_n_swa(model))
        if _explains(guess, found):
            kind, layout = found_kind, guess
    if kind is not said or layout.opaque:
        library.logger.warning(
            "the model says that its memory is %s, but it looks %s; it is taken as %s%s",
            said,
            found_kind or "like nothing known",
            kind,
            " with whole sequences as states" if layout.opaque else "",
        )
    return _capabilities(kind, layout, whole_bytes=_whole_bytes(context)), layout


def whole_sequences(capabilities: Capabilities, *, bytes_per_token: float, context_tokens: int) -> Capabilities:
    """The capabilities of a memory whose states are whole sequences, for when nothing finer can be trusted."""
    return Capabilities(
        kind=capabilities.kind,
        has_rows=False,
        has_state=True,
        state_bytes=capabilities.state_bytes + int(bytes_per_token * context_tokens),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Sizes of exports: of an empty sequence and of 0, 1 and 2 cells of one with two tokens."""

    empty: int
    full: tuple[int, int, int]
    partial: tuple[int, int, int]
    empty_state: bytes
    cell_bytes: int
    """0 when the cells are in no known layout."""
    whole: Bytes
    """Two cells, exported in full, and as their state part alone."""
    state: Bytes

    @property
    def splits(self) -> bool:
        """Whether a blob has a rows part and a state part."""
        return self.full[2] != self.partial[2]

    @property
    def kind(self) -> MemoryKind | None:
        grows = self.partial[2] > self.partial[1]
        recurrent = self.partial[0] > self.empty
        if not self.splits:
            kind = {(True, False): MemoryKind.PLAIN, (False, True): MemoryKind.RECURRENT}.get((grows, recurrent))
        else:
            kind = {
                (True, False): MemoryKind.WINDOWED,
                (False, True): MemoryKind.HYBRID,
                (True, True): MemoryKind.HYBRID_WINDOWED,
            }.get((grows, recurrent))
        return kind if kind is MemoryKind.RECURRENT or self.cell_bytes else None


def _measure(context: Any, *, scratch: int) -> _Measured:
    """Copy spans of sequence 0 to the scratch sequence and weigh them."""
    memory = api.llama_get_memory(context)
    full, partial = [], []
    empty = blobs.export_fresh(context, scratch, PARTIAL)
    # The span behind the tip holds no cells, but shares the recurrent state whatever the span.
    for start, end in ((PROBE_TOKENS, PROBE_TOKENS + 1), (0, 1), (0, PROBE_TOKENS)):
        api.llama_memory_seq_cp(memory, 0, scratch, start, end)
        full.append(blobs.export_bytes(context, scratch, FULL))
        partial.append(blobs.export_bytes(context, scratch, PARTIAL))
    whole, state = blobs.export_fresh(context, scratch, FULL), blobs.export_fresh(context, scratch, PARTIAL)
    api.llama_memory_seq_rm(memory, scratch, _ALL, _ALL)
    plain = full[2] == partial[2]
    bodies = [whole] if plain or partial[2] == partial[1] else [whole, state]
    sizes = [size for size in CELL_SIZES if all(blobs.cell_span(body, HEADER_BYTES, size) == (0, 2) for body in bodies)]
    return _Measured(
        empty=empty.nbytes,
        full=(full[0], full[1], full[2]),
        partial=(partial[0], partial[1], partial[2]),
        empty_state=b"" if plain and full[2] > full[1] else empty[HEADER_BYTES:].tobytes(),
        cell_bytes=sizes[0] if sizes else 0,
        whole=whole,
        state=state,
    )


def _layout(found: _Measured, *, window_tokens: int) -> MemoryLayout:
    kind = found.kind
    if kind is MemoryKind.PLAIN:
        row_bytes = found.full[2] - found.full[1]
        return MemoryLayout(
            cell_bytes=found.cell_bytes,
            row_bytes=row_bytes,
            rows_fixed_bytes=found.full[1] - HEADER_BYTES - row_bytes,
        )
    windowed = kind in (MemoryKind.WINDOWED, MemoryKind.HYBRID_WINDOWED)
    window_empty = KV_HEADER_BYTES if windowed else 0
    recurrent = found.partial[0] > found.empty
    recurrent_bytes = found.partial[0] - HEADER_BYTES - window_empty if recurrent else 0
    recurrent_empty = found.empty - HEADER_BYTES - window_empty if recurrent else 0
    window_row = found.partial[2] - found.partial[1]
    row_bytes = (found.full[2] - found.full[1]) - window_row
    rows_one = found.full[1] - found.partial[1]
    return MemoryLayout(
        cell_bytes=found.cell_bytes,
        row_bytes=row_bytes,
        rows_fixed_bytes=rows_one - row_bytes if found.splits else 0,
        window_tokens=window_tokens if windowed else 0,
        window_row_bytes=window_row,
        window_fixed_bytes=found.partial[1] - HEADER_BYTES - window_row - recurrent_bytes if windowed else 0,
        recurrent_bytes=recurrent_bytes,
        recurrent_empty_bytes=recurrent_empty,
        empty_state=found.empty_state,
    )


def _explains(layout: MemoryLayout, found: _Measured) -> bool:
    """Whether the two cells read as what they are: rows of two tokens, then a state that resumes at 2."""
    if layout.window_row_bytes and not layout.window_tokens:
        return False
    if found.kind is MemoryKind.PLAIN:
        return layout.rows_span(found.whole) == (0, PROBE_TOKENS)
    tail = found.whole[found.whole.nbytes - (found.state.nbytes - HEADER_BYTES) :]
    return layout.state_end(found.state) == PROBE_TOKENS and np.array_equal(tail, found.state[HEADER_BYTES:])


def _capabilities(kind: MemoryKind, layout: MemoryLayout, *, whole_bytes: int) -> Capabilities:
    if kind is MemoryKind.PLAIN:
        return Capabilities(kind=kind, has_rows=True, has_state=False, state_bytes=0)
    return Capabilities(
        kind=kind,
        has_rows=kind is not MemoryKind.RECURRENT,
        has_state=True,
        state_bytes=whole_bytes if layout.opaque else layout.state_bytes(layout.window_tokens),
    )


def _whole_bytes(context: Any) -> int:
    """About what a sequence that fills the context takes, from one of two tokens."""
    size = blobs.export_bytes(context, 0, FULL)
    cells: int = api.llama_n_ctx(context)
    return max(size, size * cells // PROBE_TOKENS)
