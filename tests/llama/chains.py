"""Leaving a sequence piece by piece and coming back, on any kind of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from anchorline.llama import testarchitectures
from anchorline.llama.interface import DecodeStatus, MemoryKind, TokenArray
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from tests.support.runtimes import Logits, feed, fresh, logits, make_runtime, random_tokens

ARCHITECTURES = tuple(testarchitectures.ARCHITECTURES)
KINDS = {
    **dict.fromkeys(("llama", "qwen3moe", "deepseek2"), MemoryKind.PLAIN),
    **dict.fromkeys(("gemma3", "gemma4", "gpt-oss"), MemoryKind.WINDOWED),
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next", "lfm2", "granitehybrid"), MemoryKind.HYBRID),
    **dict.fromkeys(("falcon-h1", "jamba", "nemotron_h"), MemoryKind.HYBRID),
    **dict.fromkeys(("mamba", "mamba2", "rwkv7"), MemoryKind.RECURRENT),
    "lfm2-windowed": MemoryKind.HYBRID_WINDOWED,
}
STATEFUL = tuple(name for name in ARCHITECTURES if KINDS[name] is not MemoryKind.PLAIN)
WINDOWED = ("gemma3", "gemma4", "gpt-oss", "lfm2-windowed")

CUTS = (0, 130, 210, 300)
SHORT_CUTS = (0, 100, 105, 140, 141, 190, 200, 230, 231, 260, 299, 330, 400)
"""Twelve pieces, most of them shorter than the window, so that a state reaches back over several."""
PROMPT = random_tokens(400)
DELTA = random_tokens(30, seed=2)

every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
_ROWS = (("f16", "f16", "on"), ("q8_0", "q8_0", "on"), ("f16", "f16", "off"), ("q8_0", "f16", "off"))
"""Types of K and V rows, and flash attention, which quantised V rows need."""


def row_types(architecture: str) -> list[tuple[str, str, str]]:
    """What ``architecture`` allows; of a recurrent one, which has no rows, the f16 ones only."""
    if KINDS[architecture] is MemoryKind.RECURRENT:
        return [rows for rows in _ROWS if rows[0] == "f16"]
    # llama.cpp keeps K and V of MLA in one row.
    return [rows for rows in _ROWS if architecture != "deepseek2" or rows[0] == rows[1]]


every_case = pytest.mark.parametrize(
    ("architecture", "rows"),
    [
        pytest.param(architecture, rows, id="-".join((architecture, *rows)))
        for architecture in ARCHITECTURES
        for rows in row_types(architecture)
    ],
)


@dataclass(frozen=True, slots=True)
class Piece:
    """What was exported of [start, end): rows, and the state at ``end``; empty where there is none."""

    rows: memoryview
    state: memoryview
    start: int
    end: int


def export_piece(runtime: LlamaRuntime, start: int, end: int, *, sequence: int = 0) -> Piece:
    """``end`` must be the sequence's tip on a stateful model."""
    kind = runtime.capabilities
    rows = runtime.export_rows(sequence, start, end, fresh) if kind.has_rows else memoryview(b"")
    state = runtime.export_state(sequence, fresh) if kind.has_state else memoryview(b"")
    assert rows is not None
    assert state is not None
    return Piece(rows, state, start, end)


def restore(runtime: LlamaRuntime, pieces: Sequence[Piece], *, sequence: int = 0) -> None:
    for piece in pieces:
        assert runtime.import_rows(sequence, piece.rows, piece.start, piece.end)
    if runtime.capabilities.has_state:
        assert runtime.import_state(sequence, pieces[-1].state, pieces[-1].end)
    assert runtime.length(sequence) == pieces[-1].end


def prefill(
    runtime: LlamaRuntime,
    cuts: Sequence[int],
    *,
    sequence: int = 0,
    before: Sequence[Piece] = (),
    reseat: bool = False,
    tokens: TokenArray = PROMPT,
) -> list[Piece]:
    """Prefill from cut to cut, exporting each piece; re-seated, it is dropped and restored at each cut too.

    ``before`` are the pieces that the sequence already holds. Returns those and the new ones.
    """
    pieces = list(before)
    for start, end in pairwise(cuts):
        feed(runtime, tokens[start:end], start=start, sequence=sequence)
        pieces.append(export_piece(runtime, start, end, sequence=sequence))
        if reseat:
            runtime.remove(sequence, 0)
            restore(runtime, pieces, sequence=sequence)
    return pieces


def resume(
    runtime: LlamaRuntime, pieces: Sequence[Piece], *, cut: int, sequence: int = 0, reseat: bool = True
) -> Logits:
    """Restore the first ``cut`` pieces into an empty sequence, prefill the others and then DELTA."""
    restore(runtime, pieces[:cut], sequence=sequence)
    cuts = [pieces[cut - 1].end, *(piece.end for piece in pieces[cut:])]
    prefill(runtime, cuts, sequence=sequence, before=pieces[:cut], reseat=reseat)
    return feed(runtime, DELTA, start=pieces[-1].end, sequence=sequence)


def greedy(runtime: LlamaRuntime, first: Logits, count: int, *, start: int, sequence: int = 0) -> list[int]:
    """The most likely token ``count`` times over, beginning with that of ``first``."""
    chosen = [int(first.argmax())]
    for position in range(start, start + count - 1):
        runtime.batch.clear()
        token = np.array(chosen[-1:], np.int32)
        index = runtime.batch.add(token, start=position, sequence=sequence, output=True)
        assert runtime.decode() is DecodeStatus.OK
        chosen.append(int(logits(runtime, index).argmax()))
    return chosen


def typed_runtime(model: Model, rows: tuple[str, str, str]) -> LlamaRuntime:
    """With ubatches so small that windows are recycled: theirs are 256 cells."""
    type_k, type_v, flash_attention = rows
    return make_runtime(
        model,
        type_k=type_k,
        type_v=type_v,
        flash_attention=flash_attention,
        context_tokens=1024,
        sequences=2,
        ubatch_tokens=64,
    )
