"""The batch: what lands in llama.cpp's arrays, and its limits."""

from __future__ import annotations

import numpy as np
import pytest

from anchorline.llama.batch import LlamaBatch
from anchorline.llama.interface import Batch
from tests.support.runtimes import random_tokens


def rows(batch: LlamaBatch) -> list[tuple[int, int, int, int, int]]:
    """(token, position, ids, sequence, output) per entry, read through the native struct."""
    native = batch.native
    return [
        (native.token[i], native.pos[i], native.n_seq_id[i], native.seq_id[i][0], native.logits[i])
        for i in range(native.n_tokens)
    ]


def test_entries_reach_the_native_arrays() -> None:
    batch = LlamaBatch(8, outputs=4)
    typed: Batch = batch
    assert typed.add(np.array([5, 6, 7], np.int32), start=10, sequence=2, output=True) == 2
    assert typed.add(np.array([8], np.int32), start=0, sequence=1, output=False) == 3
    assert typed.add(np.array([9], np.int32), start=4, sequence=0, output=True) == 4
    assert rows(batch) == [(5, 10, 1, 2, 0), (6, 11, 1, 2, 0), (7, 12, 1, 2, 1), (8, 0, 1, 1, 0), (9, 4, 1, 0, 1)]
    assert (typed.size, typed.room) == (5, 3)


def test_clearing_leaves_nothing_behind() -> None:
    batch = LlamaBatch(6, outputs=1)
    for _ in range(3):
        batch.clear()
        assert (batch.size, batch.room, batch.native.n_tokens) == (0, 6, 0)
        batch.add(random_tokens(2), start=0, sequence=0, output=True)
        batch.clear()
        batch.add(random_tokens(1), start=0, sequence=0, output=False)
        batch.add(random_tokens(4), start=7, sequence=1, output=True)
        assert [row[4] for row in rows(batch)] == [0, 0, 0, 0, 1]


def test_limits_are_asserted() -> None:
    batch = LlamaBatch(4, outputs=1)
    with pytest.raises(AssertionError, match="no room"):
        batch.add(random_tokens(5), start=0, sequence=0, output=False)
    with pytest.raises(AssertionError, match="no room"):
        batch.add(random_tokens(0), start=0, sequence=0, output=False)
    batch.add(random_tokens(1), start=0, sequence=0, output=True)
    with pytest.raises(AssertionError, match="another output"):
        batch.add(random_tokens(1), start=0, sequence=1, output=True)
    assert batch.size == 1
