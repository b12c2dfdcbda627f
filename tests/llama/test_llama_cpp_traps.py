"""What llama.cpp does that the runtime guards against; each guard rests on one of these facts.

When one of these fails after an update of llama.cpp, read the guard it names before changing it.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from anchorline.llama.blobs import HEADER_BYTES, KV_HEADER_BYTES
from anchorline.llama.library import api
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from tests.support.runtimes import export, feed, make_runtime, random_tokens

_BYTES = ctypes.POINTER(ctypes.c_uint8)

_SPLIT_CACHE = """
import numpy as np
from anchorline.llama import testmodel
from anchorline.llama.batch import LlamaBatch
from anchorline.llama.blobs import HEADER_BYTES, KV_HEADER_BYTES
from anchorline.llama.library import api

model = testmodel.build("llama", context_tokens=1024, seed=0).handle
params = api.llama_context_default_params()
params.n_ctx, params.n_seq_max, params.kv_unified, params.n_threads = 1024, 2, {unified}, 1
context = api.llama_init_from_model(model, params)
batch = LlamaBatch(64, outputs=1)
batch.add(np.arange(64, dtype=np.int32), start=0, sequence=0, output=False)
assert api.llama_decode(context, batch.native) == 0
api.llama_memory_seq_cp(api.llama_get_memory(context), 0, 1, 10, 20)
print(api.llama_memory_seq_pos_max(api.llama_get_memory(context), 1))
"""


def _set_data(runtime: LlamaRuntime, data: Any, sequence: int) -> int:
    view = np.frombuffer(data, np.uint8)
    read: int = api.llama_state_seq_set_data_ext(
        runtime._context, view.ctypes.data_as(_BYTES), view.nbytes, sequence, 0
    )
    return read


def _get_data(runtime: LlamaRuntime, sequence: int) -> bytes:
    nbytes = api.llama_state_seq_get_size_ext(runtime._context, sequence, 0)
    buffer = np.empty(nbytes, np.uint8)
    api.llama_state_seq_get_data_ext(runtime._context, buffer.ctypes.data_as(_BYTES), nbytes, sequence, 0)
    return buffer.tobytes()


@pytest.mark.parametrize(("unified", "outcome"), [(True, 0), (False, -signal.SIGABRT)])
def test_a_partial_copy_in_a_split_cache_kills_the_process(unified: bool, outcome: int) -> None:
    """Guard: contexts are always unified."""
    code = _SPLIT_CACHE.format(unified=unified)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == outcome, done.stderr
    if unified:
        assert done.stdout.strip() == "19"


def test_our_contexts_are_unified_and_keep_no_rollback_states(runtime: LlamaRuntime) -> None:
    assert api.llama_n_ctx_seq(runtime._context) == api.llama_n_ctx(runtime._context)
    assert api.llama_n_seq_max(runtime._context) == runtime.limits.sequences + 1
    assert api.llama_n_rs_seq(runtime._context) == 0


def test_a_scratch_id_outside_the_context_exports_what_cannot_come_back(test_llama_model: Model) -> None:
    """Guard: one sequence more than the engine's is made, for the scratch id."""
    runtime = make_runtime(test_llama_model, sequences=2)
    feed(runtime, random_tokens(20), start=0)
    api.llama_memory_seq_cp(runtime._memory, 0, 3, 0, 20)
    rows = _get_data(runtime, 3)
    api.llama_memory_seq_rm(runtime._memory, 3, -1, -1)
    assert _set_data(runtime, rows, 1) == 0
    assert _set_data(runtime, export(runtime, 0, 20), 1) > 0
    runtime.close()


def test_an_empty_blob_does_not_clear_its_destination(runtime: LlamaRuntime) -> None:
    """Guards: empty spans are never exported, blobs without cells never imported."""
    feed(runtime, random_tokens(20), start=0)
    empty = _get_data(runtime, 1)
    assert _set_data(runtime, empty, 0) == len(empty)
    assert runtime.length(0) == 20
    assert not runtime.import_rows(1, memoryview(empty), 0, 1)


def test_failed_set_data_leaves_the_destination_empty(runtime: LlamaRuntime) -> None:
    """Guard: segments are read into the scratch sequence, never into a live one."""
    feed(runtime, random_tokens(20), start=0)
    feed(runtime, random_tokens(30), start=0, sequence=1)
    rows = export(runtime, 0, 20)
    assert _set_data(runtime, rows[:-100], 1) == 0
    assert (runtime.length(0), runtime.length(1)) == (20, 0)


def test_a_negative_position_is_taken_and_never_freed(test_llama_model: Model) -> None:
    """Guard: positions are checked before llama.cpp sees them."""
    runtime = make_runtime(test_llama_model, sequences=2)
    feed(runtime, random_tokens(20), start=0)
    rows = bytearray(export(runtime, 0, 20))
    rows[19] ^= 0xFF
    assert not runtime.import_rows(1, memoryview(rows), 0, 20)
    shifted = bytearray(export(runtime, 0, 20))
    np.frombuffer(shifted, np.int32)[4 : 4 + 3 * 20 : 3] -= 5
    assert not runtime.import_rows(1, memoryview(shifted), 0, 10)
    assert runtime.import_rows(1, export(runtime, 0, 20), 0, 20)
    runtime.remove(1, 0)
    _set_data(runtime, rows, 1)
    runtime.remove(1, 0)
    assert api.llama_memory_seq_pos_min(runtime._memory, 1) < -1
    runtime.close()


def test_an_empty_sequence_may_start_anywhere(runtime: LlamaRuntime) -> None:
    """Guard: length() refuses a sequence that does not start at 0."""
    feed(runtime, random_tokens(5), start=7)
    with pytest.raises(Exception, match="positions 7 to 11"):
        runtime.length(0)


def test_new_tokens_take_the_lowest_free_cells(runtime: LlamaRuntime) -> None:
    """What ``engine.cells`` works out rests on it, for decoded and imported tokens. Blobs list cells in their order."""
    tokens = random_tokens(12)

    def order(sequence: int) -> list[int]:
        start = HEADER_BYTES + KV_HEADER_BYTES
        count, step = runtime.length(sequence), runtime.layout.cell_bytes
        cells = np.frombuffer(_get_data(runtime, sequence)[start : start + count * step], np.int32)
        return list(cells[:: step // 4])

    feed(runtime, tokens[:4], start=0, sequence=0)
    rows = export(runtime, 0, 4, sequence=0)
    feed(runtime, tokens[:8], start=0, sequence=1)
    runtime.remove(0, 0)
    feed(runtime, tokens[8:10], start=8, sequence=1)
    assert order(1) == [8, 9, 0, 1, 2, 3, 4, 5, 6, 7]
    assert runtime.import_rows(0, rows, 0, 4)
    runtime.remove(1, 8)
    feed(runtime, tokens[8:11], start=8, sequence=1)
    assert order(1) == [8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 10]
    feed(runtime, tokens[4:6], start=4, sequence=0)
    runtime.remove(1, 0)
    feed(runtime, tokens[6:9], start=6, sequence=0)
    assert order(0) == [6, 7, 0, 1, 8, 2, 3, 4, 5]
