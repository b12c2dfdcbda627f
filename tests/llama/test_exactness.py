"""Leaving and coming back, on every kind of memory, row type and attention: bit for bit.

Compared are runs that were re-seated at every cut, a cold one too, so that their cells lie alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from anchorline.llama.model import Model
from tests.llama.chains import (
    CUTS,
    DELTA,
    SHORT_CUTS,
    every_architecture,
    every_case,
    greedy,
    prefill,
    restore,
    resume,
    typed_runtime,
)
from tests.support.runtimes import feed, fresh, make_runtime, random_tokens

Models = Callable[[str], Model]


@every_case
@pytest.mark.parametrize("cuts", [CUTS, SHORT_CUTS], ids=["3 pieces", "12 pieces"])
def test_a_chain_resumes_at_every_cut(
    architecture: str, rows: tuple[str, str, str], cuts: tuple[int, ...], test_models: Models
) -> None:
    runtime = typed_runtime(test_models(architecture), rows)
    pieces = prefill(runtime, cuts, reseat=True)
    cold = feed(runtime, DELTA, start=cuts[-1])
    reply = greedy(runtime, cold, 16, start=cuts[-1] + DELTA.size)
    last = len(pieces)
    for cut in sorted({1, last // 2, last - 1, last}):
        runtime.remove(0, 0)
        warm = resume(runtime, pieces, cut=cut)
        assert np.array_equal(cold, warm), f"resumed at {pieces[cut - 1].end}"
        assert greedy(runtime, warm, 16, start=cuts[-1] + DELTA.size) == reply
    runtime.close()
    assert cold.std() > 0.5


@every_case
def test_a_chain_resumes_beside_another_sequence(
    architecture: str, rows: tuple[str, str, str], test_models: Models
) -> None:
    runtime = typed_runtime(test_models(architecture), rows)
    feed(runtime, random_tokens(200, seed=7), start=0, sequence=1)
    pieces = prefill(runtime, CUTS, reseat=True)
    cold = feed(runtime, DELTA, start=CUTS[-1])
    for cut in (1, 3):
        runtime.remove(0, 0)
        assert np.array_equal(cold, resume(runtime, pieces, cut=cut))
    assert runtime.length(1) == 200
    runtime.close()


@every_architecture
def test_leaving_and_coming_back_at_once_changes_nothing(architecture: str, test_models: Models) -> None:
    """Without re-seating too: the cells come to lie where they lay."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    pieces = prefill(runtime, CUTS)
    never_left = feed(runtime, DELTA, start=CUTS[-1])
    runtime.remove(0, 0)
    restore(runtime, pieces)
    back = feed(runtime, DELTA, start=CUTS[-1])
    runtime.close()
    assert np.array_equal(never_left, back)


@every_architecture
def test_every_restored_byte_matters(architecture: str, test_models: Models) -> None:
    """The comparisons can fail: a value changed in the oldest rows, or in the state, shows in the logits."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    pieces = prefill(runtime, CUTS)
    never_left = feed(runtime, DELTA, start=CUTS[-1])
    # Where every layer with attention has a window, the rows are in the state and the segment holds cells alone.
    blobs = [pieces[-1].state, *([pieces[0].rows] if pieces[0].rows.nbytes > 130 * 24 else [])]
    for blob in filter(None, blobs):
        good = bytes(blob)
        quarter = blob.nbytes // 4
        np.frombuffer(blob, np.uint8)[quarter : quarter + 80] ^= 0x80
        runtime.remove(0, 0)
        restore(runtime, pieces)
        assert not np.array_equal(never_left, feed(runtime, DELTA, start=CUTS[-1]))
        blob[:] = good
    runtime.close()


@every_architecture
def test_a_span_of_a_longer_segment_restores(architecture: str, test_models: Models) -> None:
    """Rows of [100, 210) out of a segment of [0, 300), then the state captured at 210."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    kind = runtime.capabilities
    if not kind.has_rows:
        runtime.close()
        pytest.skip("there are no rows")
    pieces = prefill(runtime, CUTS)
    runtime.remove(0, 0)
    restore(runtime, pieces)
    whole = runtime.export_rows(0, 0, 300, fresh)
    assert whole is not None
    runtime.remove(0, 0)
    restore(runtime, pieces[:2])
    never_left = feed(runtime, DELTA, start=210)
    runtime.remove(0, 0)
    assert runtime.import_rows(0, whole, 0, 100)
    assert runtime.import_rows(0, whole, 100, 210)
    if kind.has_state:
        assert runtime.import_state(0, pieces[1].state, 210)
    assert runtime.length(0) == 210
    again = runtime.export_rows(0, 130, 210, fresh)
    assert again is not None
    assert bytes(again) == bytes(pieces[1].rows)
    back = feed(runtime, DELTA, start=210)
    runtime.close()
    # The rows are the same; the cells of the parts left out lie between, so sums are ordered differently.
    np.testing.assert_allclose(back, never_left, atol=0.05)
