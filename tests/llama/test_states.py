"""Sequences of stateful models: what may be done with them, and every state that must be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from anchorline.errors import BackendFailure
from anchorline.llama.interface import DecodeStatus
from anchorline.llama.library import api
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from tests.llama.chains import CUTS, DELTA, KINDS, PROMPT, STATEFUL, WINDOWED, export_piece, prefill, restore
from tests.support.runtimes import feed, fresh, make_runtime, random_tokens

Models = Callable[[str], Model]

WITH_ROWS = tuple(name for name in STATEFUL if name not in ("mamba", "mamba2", "rwkv7"))


@pytest.fixture(params=STATEFUL)
def stateful(request: pytest.FixtureRequest, test_models: Models) -> Iterator[LlamaRuntime]:
    made = make_runtime(test_models(request.param), context_tokens=1024)
    yield made
    made.close()


@pytest.fixture(params=WITH_ROWS)
def with_rows(request: pytest.FixtureRequest, test_models: Models) -> Iterator[LlamaRuntime]:
    made = make_runtime(test_models(request.param), context_tokens=1024)
    yield made
    made.close()


def state_of(runtime: LlamaRuntime, sequence: int = 0) -> memoryview:
    state = runtime.export_state(sequence, fresh)
    assert state is not None
    return state


def scratch_tip(runtime: LlamaRuntime) -> int:
    tip: int = api.llama_memory_seq_pos_max(runtime._memory, runtime.limits.sequences)
    return tip


def test_lengths(stateful: LlamaRuntime) -> None:
    assert stateful.length(0) == 0
    pieces = prefill(stateful, CUTS)
    assert stateful.length(0) == 300
    stateful.remove(0, 0)
    assert stateful.length(0) == 0
    assert stateful.import_rows(0, pieces[0].rows, 0, 130)
    assert stateful.length(0) == 0
    assert stateful.import_state(0, pieces[0].state, 130)
    assert stateful.length(0) == 130


def test_segments_carry_no_state_and_leave_the_live_sequence_as_it_was(with_rows: LlamaRuntime) -> None:
    feed(with_rows, PROMPT[:300], start=0)
    before = bytes(state_of(with_rows))
    sizes = [export_piece(with_rows, 100, 100 + count).rows.nbytes for count in (1, 2, 12)]
    per_token = with_rows.limits.bytes_per_token
    assert [sizes[1] - sizes[0], sizes[2] - sizes[1]] == [per_token, 10 * per_token]
    assert sizes[0] < per_token + 400
    assert bytes(state_of(with_rows)) == before
    assert scratch_tip(with_rows) == -1


def test_exports_without_a_buffer_end_quietly(stateful: LlamaRuntime) -> None:
    feed(stateful, PROMPT[:100], start=0)
    wanted: list[int] = []
    assert stateful.export_state(0, lambda nbytes: wanted.append(nbytes)) is None
    assert wanted == [state_of(stateful).nbytes]
    with pytest.raises(BackendFailure, match="is empty and has no state"):
        stateful.export_state(1, fresh)


def test_a_damaged_state_is_refused_or_harmless(stateful: LlamaRuntime) -> None:
    """Every byte ahead of the first layer's values; the process lives, and the next good state is taken."""
    pieces = prefill(stateful, (0, 40))
    good = bytes(pieces[0].state)
    good_end = len(good)
    damaged = []
    for offset in [*range(60), *range(good_end - 12, good_end - 8)]:
        for flip in (0x01, 0x03, 0x80, 0xFF):
            state = bytearray(good)
            state[offset] ^= flip
            damaged.append((offset, memoryview(state)))
    damaged += [(length, memoryview(good)[:length]) for length in (0, 1, 8, 12, 16, 20, 40, good_end - 1)]
    damaged.append((good_end, memoryview(good + b"more")))
    refused = set()
    for place, attempt in damaged:
        stateful.remove(0, 0)
        assert stateful.import_rows(0, pieces[0].rows, 0, 40)
        if stateful.import_state(0, attempt, 40):
            assert stateful.length(0) == 40
        else:
            refused.add(place)
    # Magic, counts and positions; the sequence id in the header is not read.
    assert refused >= {*range(4), *range(8, 20), 0, 1, 8, 40, good_end - 1, good_end}
    stateful.remove(0, 0)
    restore(stateful, pieces)
    assert bytes(state_of(stateful)) == good


def test_the_state_of_another_position_is_refused(stateful: LlamaRuntime) -> None:
    pieces = prefill(stateful, CUTS)
    for state in (pieces[0].state, pieces[2].state):
        stateful.remove(0, 0)
        for piece in pieces[:2]:
            assert stateful.import_rows(0, piece.rows, piece.start, piece.end)
        assert not stateful.import_state(0, state, 210)


@pytest.mark.parametrize(("mine", "other"), [("qwen35", "lfm2"), ("gemma3", "gpt-oss"), ("mamba", "mamba2")])
def test_what_another_model_exported(mine: str, other: str, test_models: Models) -> None:
    """Refused when sizes or types differ; that the bytes are of this very model is the namespace's to say."""
    theirs, ours = (make_runtime(test_models(name), context_tokens=1024) for name in (other, mine))
    foreign, own = prefill(theirs, CUTS)[:1], prefill(ours, CUTS)[:1]
    ours.remove(0, 0)
    if foreign[0].state.nbytes != own[0].state.nbytes:
        assert ours.import_rows(0, own[0].rows, 0, 130)
        assert not ours.import_state(0, foreign[0].state, 130)
    theirs.close()
    ours.close()


def test_a_segment_with_a_state_in_it_is_refused(with_rows: LlamaRuntime) -> None:
    """Imported below the leaf it would leave the sequence with a state of another position."""
    feed(with_rows, PROMPT[:80], start=0)
    nbytes = api.llama_state_seq_get_size_ext(with_rows._context, 0, 0)
    whole = np.empty(nbytes, np.uint8)
    pointer = whole.ctypes.data_as(api.ctypes.POINTER(api.ctypes.c_uint8))
    assert api.llama_state_seq_get_data_ext(with_rows._context, pointer, nbytes, 0, 0) == nbytes
    assert not with_rows.import_rows(1, memoryview(whole.tobytes()), 0, 80)
    assert with_rows.length(1) == 0


def test_rows_that_went_missing_are_noticed(with_rows: LlamaRuntime) -> None:
    pieces = prefill(with_rows, CUTS)
    with_rows.remove(0, 0)
    for piece in pieces:
        assert with_rows.import_rows(0, piece.rows, piece.start, piece.end)
    assert api.llama_memory_seq_rm(with_rows._memory, 0, 10, 20)
    assert not with_rows.import_state(0, pieces[-1].state, 300)


def test_holes_are_not_exported(with_rows: LlamaRuntime) -> None:
    feed(with_rows, PROMPT[:200], start=0)
    assert api.llama_memory_seq_rm(with_rows._memory, 0, 10, 20)
    with pytest.raises(BackendFailure, match=r"does not hold each of \[0, 50\) once"):
        with_rows.export_rows(0, 0, 50, fresh)
    assert scratch_tip(with_rows) == -1


def test_a_chain_is_imported_in_order_into_an_empty_sequence(with_rows: LlamaRuntime) -> None:
    pieces = prefill(with_rows, CUTS)
    with pytest.raises(BackendFailure, match="cannot take in"):
        with_rows.import_rows(0, pieces[0].rows, 0, 130)
    with pytest.raises(BackendFailure, match="ends at 0; it cannot take in"):
        with_rows.import_rows(1, pieces[1].rows, 130, 210)
    assert with_rows.import_rows(1, pieces[0].rows, 0, 130)
    with pytest.raises(BackendFailure, match="holds rows of 130 tokens, not 210"):
        with_rows.import_state(1, pieces[1].state, 210)
    assert not with_rows.import_rows(1, pieces[1].rows[:-1], 130, 210)
    assert with_rows.import_rows(1, pieces[1].rows, 130, 210)
    with_rows.remove(1, 0)
    restore(with_rows, pieces[:1], sequence=1)


def test_rows_without_their_state_are_not_decoded(with_rows: LlamaRuntime) -> None:
    pieces = prefill(with_rows, CUTS)
    with_rows.remove(0, 0)
    assert with_rows.import_rows(0, pieces[0].rows, 0, 130)
    with_rows.batch.clear()
    with_rows.batch.add(DELTA, start=0, sequence=1, output=True)
    assert with_rows.decode() is DecodeStatus.OK
    with_rows.batch.add(DELTA, start=130, sequence=0, output=True)
    with pytest.raises(AssertionError, match="lacks its state"):
        with_rows.decode()


@pytest.mark.parametrize("span", [(0, 50), (50, None), (50, 60)])
def test_parts_of_a_sequence_are_not_removed(stateful: LlamaRuntime, span: tuple[int, int | None]) -> None:
    feed(stateful, PROMPT[:100], start=0)
    with pytest.raises(AssertionError, match="removed whole"):
        stateful.remove(0, *span)
    assert stateful.length(0) == 100


@pytest.mark.parametrize("span", [(0, 99), (1, 100)])
def test_forks_below_the_tip_are_not_made(stateful: LlamaRuntime, span: tuple[int, int]) -> None:
    feed(stateful, PROMPT[:100], start=0)
    with pytest.raises(AssertionError, match="forked"):
        stateful.copy_sequence(0, 1, *span)
    assert stateful.length(1) == 0


def test_a_fork_at_the_tip_goes_its_own_way(stateful: LlamaRuntime) -> None:
    feed(stateful, PROMPT[:300], start=0)
    before = export_piece(stateful, 0, 300)
    stateful.copy_sequence(0, 1, 0, 300)
    after = export_piece(stateful, 0, 300, sequence=1)
    # Byte 4 to 7 of a blob are the id of the sequence that it was exported from.
    assert bytes(after.rows) == bytes(before.rows)
    assert bytes(after.state)[8:20] == bytes(before.state)[8:20]
    mine = feed(stateful, DELTA, start=300)
    theirs = feed(stateful, DELTA, start=300, sequence=1)
    # Cells may lie in another order, and so may sums.
    np.testing.assert_allclose(theirs, mine, atol=0.05)
    stateful.remove(0, 0)
    assert stateful.length(1) == 330
    feed(stateful, random_tokens(20, seed=9), start=330, sequence=1)
    assert stateful.length(1) == 350


@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_fork_of_a_sequence_that_fills_the_window_cells_decodes(architecture: str, test_models: Models) -> None:
    """The guard: a fork has a window of its own. Sharing one, the first token would find no cell."""
    runtime = make_runtime(test_models(architecture), context_tokens=2048)
    tokens = random_tokens(1500, seed=4)
    for start in range(0, 1500, 500):
        feed(runtime, tokens[start : start + 500], start=start)
    runtime.copy_sequence(0, 1, 0, 1500)
    assert 0 < runtime._segments._staging.nbytes <= runtime.limits.fork_bytes
    for position in range(1500, 1600):
        feed(runtime, tokens[position - 1500 : position - 1499], start=position, sequence=1)
        feed(runtime, tokens[position - 1500 : position - 1499], start=position)
    runtime.close()
    assert KINDS[architecture].value.endswith("windowed")
