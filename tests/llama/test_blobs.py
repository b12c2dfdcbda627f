"""Sizing and checking of exported bytes, on blobs written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anchorline.llama.blobs import Bytes, MemoryLayout

MAGIC = 0xAF143CD8
EMPTY_WINDOW = np.array([1, 0], np.uint32).tobytes()
EMPTY_RECURRENT = b"\0" * 12 + b"layers"

PLAIN = MemoryLayout(cell_bytes=12, row_bytes=20, rows_fixed_bytes=24)
WINDOWED = replace(PLAIN, window_tokens=4, window_row_bytes=16, window_fixed_bytes=24, empty_state=EMPTY_WINDOW)
HYBRID = replace(PLAIN, recurrent_bytes=40, recurrent_empty_bytes=len(EMPTY_RECURRENT), empty_state=EMPTY_RECURRENT)
BOTH = replace(
    WINDOWED,
    recurrent_bytes=40,
    recurrent_empty_bytes=len(EMPTY_RECURRENT),
    empty_state=EMPTY_WINDOW + EMPTY_RECURRENT,
)


def kv_body(start: int, end: int, *, row_bytes: int, fixed_bytes: int = 24, order: int = 1) -> bytes:
    """Cells at [start, end), in that order or backwards, and as many bytes of rows as the layout says."""
    cells = [value for position in range(start, end)[::order] for value in (position, 1, 0)]
    head = np.array([1, end - start, *cells], np.int32).tobytes()
    return head + bytes(fixed_bytes - 8) + bytes((row_bytes - 12) * (end - start))


def recurrent_body(position: int, *, cells: int = 1, ids: int = 0, nbytes: int = 40) -> bytes:
    return np.array([cells, position, ids], np.int32).tobytes() + bytes(nbytes - 12)


def blob(*parts: bytes, magic: int = MAGIC) -> Bytes:
    return np.frombuffer(b"".join((np.array([magic, 3], np.uint32).tobytes(), *parts)), np.uint8)


ROWS = kv_body(5, 9, row_bytes=20)


@pytest.mark.parametrize("layout", [PLAIN, WINDOWED, HYBRID, BOTH])
def test_a_segment_is_measured_and_read(layout: MemoryLayout) -> None:
    segment = blob(ROWS, layout.empty_state)
    assert segment.nbytes == layout.rows_bytes(4)
    assert layout.rows_span(segment) == (5, 9)
    assert layout.rows_span(blob(kv_body(5, 9, row_bytes=20, order=-1), layout.empty_state)) == (5, 9)


@pytest.mark.parametrize("layout", [WINDOWED, HYBRID, BOTH])
@pytest.mark.parametrize(
    "parts",
    [
        lambda empty: (ROWS,),
        lambda empty: (ROWS, empty, b"x"),
        lambda empty: (ROWS[:-1], empty),
        lambda empty: (ROWS, bytes([empty[0] ^ 1]) + empty[1:]),
        lambda empty: (ROWS, empty[:-1] + b"\xff"),
        lambda empty: (kv_body(5, 5, row_bytes=20), empty),
        lambda empty: (kv_body(-1, 3, row_bytes=20), empty),
        lambda empty: (ROWS[:8] + ROWS[20:32] * 2 + ROWS[32:], empty),
        lambda empty: (ROWS[:8] + np.array([99], np.int32).tobytes() + ROWS[12:], empty),
        lambda empty: (b"\2" + ROWS[1:], empty),
        lambda empty: (ROWS[:4] + b"\xff\xff\xff\xff" + ROWS[8:], empty),
        lambda empty: (),
    ],
)
def test_what_is_not_a_segment(layout: MemoryLayout, parts: Any) -> None:
    assert layout.rows_span(blob(*parts(layout.empty_state))) is None


def test_neither_without_the_magic() -> None:
    assert PLAIN.rows_span(blob(ROWS, magic=MAGIC ^ 1)) is None
    assert HYBRID.state_end(blob(recurrent_body(8))) == 9
    assert HYBRID.state_end(blob(recurrent_body(8), magic=MAGIC ^ 1)) is None


def window(start: int, end: int) -> bytes:
    return kv_body(start, end, row_bytes=16)


@pytest.mark.parametrize(
    ("layout", "parts", "end"),
    [
        (WINDOWED, (window(0, 3),), 3),
        (WINDOWED, (window(0, 4),), 4),
        (WINDOWED, (window(6, 10),), 10),
        (WINDOWED, (window(8, 10),), 10),  # the chunk that starts at 8
        (HYBRID, (recurrent_body(9),), 10),
        (BOTH, (window(6, 10), recurrent_body(9)), 10),
    ],
)
def test_a_state_is_measured_and_read(layout: MemoryLayout, parts: tuple[bytes, ...], end: int) -> None:
    state = blob(*parts)
    assert layout.state_end(state) == end
    assert state.nbytes <= layout.state_bytes(end)


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        (WINDOWED, (window(7, 10),)),
        (WINDOWED, (window(5, 10),)),
        (WINDOWED, (window(6, 10), b"x")),
        (WINDOWED, (window(6, 10)[:-1],)),
        (WINDOWED, (EMPTY_WINDOW,)),
        (HYBRID, (recurrent_body(9, cells=0),)),
        (HYBRID, (recurrent_body(9, cells=2),)),
        (HYBRID, (recurrent_body(9, ids=1),)),
        (HYBRID, (recurrent_body(-1),)),
        (HYBRID, (recurrent_body(9, nbytes=41),)),
        (HYBRID, (recurrent_body(9, nbytes=39),)),
        (HYBRID, (bytes(4), recurrent_body(9))),
        (BOTH, (window(6, 10), recurrent_body(8))),
        (BOTH, (window(6, 10), recurrent_body(9, cells=2))),
        (BOTH, (window(6, 10),)),
        (BOTH, (recurrent_body(9),)),
        (MemoryLayout(opaque=True), (recurrent_body(9),)),
    ],
)
def test_what_is_not_a_state(layout: MemoryLayout, parts: tuple[bytes, ...]) -> None:
    assert layout.state_end(blob(*parts)) is None


@pytest.mark.parametrize(
    ("first", "end", "suffices"),
    [(0, 3, True), (7, 10, True), (6, 10, True), (8, 10, True), (9, 10, False), (3, 6, True), (5, 6, False)],
)
def test_what_the_next_token_needs_of_a_window(first: int, end: int, suffices: bool) -> None:
    """Three tokens before it, or its chunk of four."""
    assert WINDOWED.window_suffices(first, end) is suffices
