"""Leaving and coming back: logits after a chain restore equal those of never having left, bit for bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from anchorline.errors import BackendFailure
from anchorline.llama.interface import DecodeStatus
from anchorline.llama.library import api
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from tests.support.runtimes import export, feed, fresh, make_runtime, random_tokens

CUTS = (0, 130, 210, 260)
PROMPT = random_tokens(CUTS[-1])
DELTA = random_tokens(30, seed=2)


def fill(runtime: LlamaRuntime, *, cuts: tuple[int, ...] = CUTS, sequence: int = 0) -> list[memoryview]:
    """Prefill the prompt span by span and export each."""
    segments = []
    for start, end in pairwise(cuts):
        feed(runtime, PROMPT[start:end], start=start, sequence=sequence)
        segments.append(export(runtime, start, end, sequence=sequence))
    return segments


def restore(runtime: LlamaRuntime, segments: list[memoryview], *, sequence: int = 0) -> None:
    for rows, start, end in zip(segments, CUTS, CUTS[1:], strict=False):
        assert runtime.import_rows(sequence, rows, start, end)
        assert runtime.length(sequence) == end


@pytest.mark.parametrize("name", ["test_llama_model", "smollm2_model"])
@pytest.mark.parametrize("type_kv", ["f16", "q8_0"])
def test_a_restored_chain_is_bit_exact(name: str, type_kv: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(name)
    runtime = make_runtime(model, type_k=type_kv, type_v=type_kv, context_tokens=1024)
    segments = fill(runtime)
    never_left = feed(runtime, DELTA, start=CUTS[-1])
    runtime.remove(0, 0)
    assert runtime.length(0) == 0
    restore(runtime, segments)
    back = feed(runtime, DELTA, start=CUTS[-1])
    runtime.close()
    assert np.array_equal(never_left, back)
    assert never_left.std() > 0.1


def test_restored_rows_matter(runtime: LlamaRuntime) -> None:
    """The comparison above can fail: one changed value in one V row shows in the logits."""
    segments = fill(runtime)
    never_left = feed(runtime, DELTA, start=CUTS[-1])
    runtime.remove(0, 0)
    segments[1][-199] ^= 0x80  # the sign of one f16 value
    restore(runtime, segments)
    assert not np.array_equal(never_left, feed(runtime, DELTA, start=CUTS[-1]))


def test_a_chain_restores_into_another_sequence_beside_others(runtime: LlamaRuntime) -> None:
    other = random_tokens(333, seed=3)
    feed(runtime, other, start=0, sequence=2)
    segments = fill(runtime)
    never_left = feed(runtime, DELTA, start=CUTS[-1])
    runtime.remove(0, 0)
    restore(runtime, segments, sequence=1)
    assert np.array_equal(never_left, feed(runtime, DELTA, start=CUTS[-1], sequence=1))
    assert (runtime.length(0), runtime.length(2)) == (0, 333)


def test_a_chain_restores_into_a_pool_whose_first_cells_are_taken(test_llama_model: Model) -> None:
    """Cells lie elsewhere than at export, so sums may be ordered differently, but the rows are the same."""
    runtime = make_runtime(test_llama_model)
    segments = fill(runtime)
    never_left = feed(runtime, DELTA, start=CUTS[-1])
    again = [bytes(segment) for segment in segments]
    runtime.remove(0, 0)
    feed(runtime, random_tokens(77, seed=4), start=0, sequence=2)
    restore(runtime, segments)
    for data, start, end in zip(again, CUTS, CUTS[1:], strict=False):
        assert bytes(export(runtime, start, end)) == data
    back = feed(runtime, DELTA, start=CUTS[-1])
    runtime.close()
    np.testing.assert_allclose(back, never_left, atol=0.05)


def test_the_first_part_of_a_segment_restores_bit_exactly(runtime: LlamaRuntime) -> None:
    segments = fill(runtime)
    runtime.remove(0, 170)
    never_left = feed(runtime, DELTA, start=170)
    runtime.remove(0, 0)
    assert runtime.import_rows(0, segments[0], 0, 130)
    assert runtime.import_rows(0, segments[1], 130, 170)
    assert runtime.length(0) == 170
    assert np.array_equal(never_left, feed(runtime, DELTA, start=170))


def test_an_inner_part_of_a_segment_restores(runtime: LlamaRuntime) -> None:
    """The rows are the same; the cells before the part stay free, so sums are ordered differently."""
    segments = fill(runtime)
    whole = export(runtime, 0, CUTS[-1])
    rows = bytes(export(runtime, 100, 150))
    runtime.remove(0, 150)
    never_left = feed(runtime, DELTA, start=150)
    runtime.remove(0, 0)
    assert runtime.import_rows(0, segments[0], 0, 100)
    assert runtime.import_rows(0, whole, 100, 150)
    assert runtime.length(0) == 150
    assert bytes(export(runtime, 100, 150)) == rows
    np.testing.assert_allclose(feed(runtime, DELTA, start=150), never_left, atol=0.05)


def test_an_export_leaves_the_live_sequence_as_it_was(runtime: LlamaRuntime) -> None:
    fill(runtime)
    first = feed(runtime, DELTA, start=CUTS[-1])
    runtime.remove(0, CUTS[-1])
    export(runtime, 40, 90)
    assert runtime.length(0) == CUTS[-1]
    assert np.array_equal(first, feed(runtime, DELTA, start=CUTS[-1]))


def test_size_grows_with_the_span_alone(runtime: LlamaRuntime) -> None:
    fill(runtime)
    sizes = [export(runtime, 100, 100 + count).nbytes for count in (1, 2, 11)]
    assert sizes[1] - sizes[0] == runtime.limits.bytes_per_token
    assert sizes[2] - sizes[1] == 9 * runtime.limits.bytes_per_token


@pytest.mark.parametrize(("start", "end"), [(5, 5), (9, 5), (-1, 5), (250, 261)])
def test_empty_and_outside_spans_are_not_exported(runtime: LlamaRuntime, start: int, end: int) -> None:
    fill(runtime)
    with pytest.raises(BackendFailure, match="cannot export"):
        runtime.export_rows(0, start, end, fresh)


def test_no_buffer_ends_the_export(runtime: LlamaRuntime) -> None:
    fill(runtime)
    wanted = []
    assert runtime.export_rows(0, 0, 10, lambda nbytes: wanted.append(nbytes)) is None
    assert wanted == [export(runtime, 0, 10).nbytes]


def test_the_scratch_sequence_is_empty_after_every_outcome(runtime: LlamaRuntime) -> None:
    segments = fill(runtime)
    scratch = runtime.limits.sequences

    def scratch_tip() -> int:
        tip: int = api.llama_memory_seq_pos_max(runtime._memory, scratch)
        return tip

    assert scratch_tip() == -1
    runtime.export_rows(0, 0, 10, lambda nbytes: None)
    assert scratch_tip() == -1

    def fail(nbytes: int) -> memoryview:
        raise KeyError(nbytes)

    with pytest.raises(KeyError):
        runtime.export_rows(0, 0, 10, fail)
    assert scratch_tip() == -1
    assert runtime.import_rows(1, segments[0], 0, 50)
    assert scratch_tip() == -1
    assert not runtime.import_rows(1, segments[0][:-1], 50, 60)
    assert scratch_tip() == -1


def test_a_segment_goes_to_the_tip_only(runtime: LlamaRuntime) -> None:
    segments = fill(runtime)
    runtime.remove(0, 100)
    for start in (90, 110):
        with pytest.raises(BackendFailure, match="ends at 100"):
            runtime.import_rows(0, segments[0], start, 120)
    assert runtime.length(0) == 100


def test_a_span_outside_the_segment_is_refused(runtime: LlamaRuntime) -> None:
    segments = fill(runtime)
    runtime.remove(0, 0)
    assert not runtime.import_rows(0, segments[1], 0, 50)
    assert not runtime.import_rows(0, segments[0], 0, CUTS[1] + 1)
    assert runtime.length(0) == 0


def test_no_room_leaves_the_sequence_at_its_start(test_llama_model: Model) -> None:
    runtime = make_runtime(test_llama_model, context_tokens=512)
    segments = fill(runtime)
    runtime.remove(0, 100)
    feed(runtime, random_tokens(300, seed=5), start=0, sequence=1)
    assert not runtime.import_rows(0, segments[0], 100, 130)
    assert (runtime.length(0), runtime.length(1)) == (100, 300)
    runtime.remove(1, 0)
    assert runtime.import_rows(0, segments[0], 100, 130)
    runtime.close()


def test_damaged_segments_are_refused_and_the_live_sequence_goes_on(runtime: LlamaRuntime) -> None:
    """Every header byte and every length; whatever is refused, the next good import succeeds."""
    segments = fill(runtime)
    runtime.remove(0, 100)
    before = feed(runtime, DELTA, start=100)
    runtime.remove(0, 100)
    good = segments[0]
    magic_to_cell = [*range(4), *range(8, 24)]
    for offset in magic_to_cell:
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(good)
            damaged[offset] ^= flip
            assert not runtime.import_rows(0, memoryview(damaged), 100, 120), (offset, flip)
    for length in (0, 1, 15, 16, 100, good.nbytes - 1):
        assert not runtime.import_rows(0, good[:length], 100, 120)
    assert not runtime.import_rows(0, memoryview(bytes(good) + b"more"), 100, 120)
    assert runtime.length(0) == 100
    assert np.array_equal(before, feed(runtime, DELTA, start=100))
    runtime.remove(0, 100)
    assert runtime.import_rows(0, good, 100, 120)


def test_a_segment_of_other_row_types_is_refused(test_llama_model: Model, runtime: LlamaRuntime) -> None:
    quantised = make_runtime(test_llama_model, type_k="q8_0", type_v="q8_0")
    segments = fill(quantised)
    quantised.close()
    assert not runtime.import_rows(0, segments[0], 0, 50)
    assert runtime.length(0) == 0


def test_a_read_only_segment_restores(runtime: LlamaRuntime) -> None:
    segments = fill(runtime)
    runtime.remove(0, 0)
    assert runtime.import_rows(0, memoryview(bytes(segments[0])), 0, 130)


def test_restored_cells_out_of_order_export_and_restore(runtime: LlamaRuntime) -> None:
    """After frees the pool's order is not that of the positions; the span is still whole."""
    feed(runtime, random_tokens(40, seed=6), start=0, sequence=1)
    feed(runtime, PROMPT[:100], start=0)
    runtime.remove(1, 0)
    feed(runtime, PROMPT[100:200], start=100)
    rows = export(runtime, 0, 200)
    never_left = feed(runtime, DELTA, start=200)
    runtime.remove(0, 0)
    assert runtime.import_rows(0, rows, 0, 200)
    assert runtime.decode() is DecodeStatus.OK
    runtime.remove(0, 200)
    np.testing.assert_allclose(feed(runtime, DELTA, start=200), never_left, atol=0.05)
