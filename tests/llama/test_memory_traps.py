"""What llama.cpp does with windows and recurrent states, and the guard that rests on each fact.

When one of these fails after an update of llama.cpp, read the guard it names before changing it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anchorline.errors import BackendFailure
from anchorline.llama import blobs
from anchorline.llama.blobs import FULL, PARTIAL
from anchorline.llama.interface import DecodeStatus
from anchorline.llama.library import api
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from tests.llama.chains import CUTS, DELTA, PROMPT, STATEFUL, prefill, restore
from tests.support.runtimes import feed, fresh, make_runtime

Models = Callable[[str], Model]

HYBRIDS = ("qwen35", "lfm2", "falcon-h1")
RECURRENT = ("mamba", "mamba2", "rwkv7")

_TWO_CELLS = """
import numpy as np
from anchorline.config import ModelConfig
from anchorline.llama import blobs
from anchorline.llama.model import load_model
from tests.support.runtimes import feed, fresh, make_runtime, random_tokens

runtime = make_runtime(load_model(ModelConfig(model="test:mamba2")))
feed(runtime, random_tokens(40), start=0)
state = np.frombuffer(runtime.export_state(0, fresh), np.uint8)
# Of the right size: [header][cells = 2][one cell][what is left is read as another]
two = np.concatenate([state[:8], np.array([2, 39, 0, 38, 0], np.int32).view(np.uint8), state[28:]])
assert not runtime.import_state(1, memoryview(two), 40)
print("refused", flush=True)
blobs.import_from(runtime._context, 1, blobs.PARTIAL, two)
"""


def seq_rm(runtime: LlamaRuntime, sequence: int, start: int, end: int) -> bool:
    done: bool = api.llama_memory_seq_rm(runtime._memory, sequence, start, end)
    return done


def pos(runtime: LlamaRuntime, sequence: int) -> tuple[int, int]:
    memory = runtime._memory
    return api.llama_memory_seq_pos_min(memory, sequence), api.llama_memory_seq_pos_max(memory, sequence)


@pytest.mark.parametrize("architecture", STATEFUL)
def test_no_context_keeps_rollback_states_or_whole_windows(architecture: str, test_models: Models) -> None:
    """Guards: n_rs_seq is 0 (a rollback after a restore gives a wrong state), swa_full is off, the pool is unified."""
    runtime = make_runtime(test_models(architecture), context_tokens=2048)
    assert api.llama_n_rs_seq(runtime._context) == 0
    assert api.llama_n_ctx_seq(runtime._context) == api.llama_n_ctx(runtime._context)
    assert api.llama_n_seq_max(runtime._context) == runtime.limits.sequences + 1
    runtime.close()


@pytest.mark.parametrize("architecture", [*HYBRIDS, *RECURRENT])
def test_a_recurrent_tail_cannot_be_removed(architecture: str, test_models: Models) -> None:
    """Guard: remove() takes whole sequences of stateful models only, by their own id."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    feed(runtime, PROMPT[:100], start=0)
    assert not seq_rm(runtime, 0, 60, -1)
    assert not seq_rm(runtime, -1, 60, -1)
    assert runtime.length(0) == 100
    assert seq_rm(runtime, 0, 0, -1)
    assert runtime.length(0) == 0
    runtime.close()


@pytest.mark.parametrize("architecture", RECURRENT)
def test_removing_the_middle_of_a_recurrent_sequence_does_nothing(architecture: str, test_models: Models) -> None:
    """Guard: as above; llama.cpp says that it was done."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    feed(runtime, PROMPT[:100], start=0)
    before = runtime.export_state(0, fresh)
    assert seq_rm(runtime, 0, 20, 40)
    assert runtime.export_state(0, fresh) == before
    runtime.close()


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_removing_the_middle_of_a_hybrid_tears_rows_from_state(architecture: str, test_models: Models) -> None:
    """Guard: as above, and export_rows counts its cells."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    feed(runtime, PROMPT[:100], start=0)
    before = runtime.export_state(0, fresh)
    assert seq_rm(runtime, 0, 20, 40)
    assert pos(runtime, 0) == (99, 99)
    assert runtime.export_state(0, fresh) == before
    with pytest.raises(BackendFailure, match="does not hold each of"):
        runtime.export_rows(0, 0, 100, fresh)
    runtime.close()


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_a_hybrid_fork_below_the_tip_has_the_state_of_the_tip(architecture: str, test_models: Models) -> None:
    """Guards: copy_sequence() forks at the tip; length() takes positions that cross as a failure."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    pieces = prefill(runtime, CUTS)
    api.llama_memory_seq_cp(runtime._memory, 0, 1, 0, 210)
    assert pos(runtime, 1) == (299, 209)
    with pytest.raises(BackendFailure, match="positions 299 to 209"):
        runtime.length(1)
    wrong = feed_unguarded(runtime, DELTA, start=210, sequence=1)
    runtime.remove(0, 0)
    runtime.remove(1, 0)
    restore(runtime, pieces[:2])
    right = feed(runtime, DELTA, start=210)
    runtime.close()
    assert np.abs(wrong - right).max() > 1e-4


def feed_unguarded(runtime: LlamaRuntime, tokens: Any, *, start: int, sequence: int) -> Any:
    runtime._takes_gaps = False
    runtime.batch.clear()
    index = runtime.batch.add(tokens, start=start, sequence=sequence, output=True)
    assert runtime.decode() is DecodeStatus.OK
    pointer = api.llama_get_logits_ith(runtime._context, index)
    return np.ctypeslib.as_array(pointer, shape=(runtime.limits.vocab_size,)).copy()


@pytest.mark.parametrize("architecture", ["gemma3", "gemma4", "gpt-oss"])
def test_a_window_rolled_back_behind_itself_is_wrong(architecture: str, test_models: Models) -> None:
    """Guards: remove() takes whole sequences; length() wants all of the window that the next token sees."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    pieces = prefill(runtime, CUTS)
    runtime.remove(0, 0)
    restore(runtime, pieces)
    assert pos(runtime, 0) == (236, 299)
    assert seq_rm(runtime, 0, 250, -1)
    assert pos(runtime, 0) == (236, 249)
    with pytest.raises(BackendFailure, match="positions 236 to 249"):
        runtime.length(0)
    wrong = feed(runtime, DELTA, start=250)
    runtime.remove(0, 0)
    prefill(runtime, (0, 130, 210, 250))
    right = feed(runtime, DELTA, start=250)
    runtime.close()
    assert np.abs(wrong - right).max() > 1e-4


@pytest.mark.parametrize("architecture", ["gemma3", "gpt-oss", "lfm2-windowed"])
def test_a_copied_span_holds_only_its_share_of_the_window(architecture: str, test_models: Models) -> None:
    """Guard: states are exported from the live sequence, never from the scratch one."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    feed(runtime, PROMPT[:300], start=0)
    live = blobs.export_bytes(runtime._context, 0, PARTIAL)
    api.llama_memory_seq_cp(runtime._memory, 0, 1, 290, 300)
    assert blobs.export_bytes(runtime._context, 1, PARTIAL) < live
    runtime.close()


@pytest.mark.parametrize("architecture", ["gemma3", "gpt-oss", "lfm2-windowed"])
def test_a_shared_window_is_never_recycled(architecture: str, test_models: Models) -> None:
    """Guard: copy_sequence() gives the fork a window of its own."""
    runtime = make_runtime(test_models(architecture), context_tokens=2048)
    tokens = np.tile(PROMPT, 4)[:1500]
    for start in range(0, 1500, 500):
        feed(runtime, tokens[start : start + 500], start=start)
    api.llama_memory_seq_cp(runtime._memory, 0, 1, 0, 1500)
    runtime.batch.clear()
    runtime.batch.add(PROMPT[:1], start=1500, sequence=1, output=True)
    assert runtime.decode() is DecodeStatus.NO_CELLS
    runtime.close()


def test_an_mrope_model_takes_gaps(test_models: Models) -> None:
    """Guard: decode() refuses a batch that does not go on where its sequence ends."""
    runtime = make_runtime(test_models("qwen35"), context_tokens=1024)
    feed(runtime, PROMPT[:100], start=0)
    for start in (99, 101):
        runtime.batch.clear()
        runtime.batch.add(DELTA, start=start, sequence=0, output=True)
        with pytest.raises(BackendFailure, match=f"ends at 100; it cannot go on at {start}"):
            runtime.decode()
    assert runtime.length(0) == 100
    runtime.batch.clear()
    runtime.batch.add(DELTA[:10], start=100, sequence=0, output=False)
    runtime.batch.add(DELTA[10:], start=110, sequence=0, output=True)
    assert runtime.decode() is DecodeStatus.OK
    feed_unguarded(runtime, DELTA, start=150, sequence=0)
    assert pos(runtime, 0)[1] == 179
    runtime.close()


def test_rolling_back_after_a_restore_gives_a_wrong_state(test_models: Models) -> None:
    """Guard: n_rs_seq is 0, so llama.cpp refuses instead."""
    model = test_models("qwen35")
    params = api.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_rs_seq, params.kv_unified, params.n_threads = 1024, 2, 4, True, 1
    context = api.llama_init_from_model(model.handle, params)
    memory = api.llama_get_memory(context)
    runtime = make_runtime(model, context_tokens=1024)

    def decode(tokens: Any, start: int) -> Any:
        runtime.batch.clear()
        index = runtime.batch.add(tokens, start=start, sequence=0, output=True)
        assert api.llama_decode(context, runtime.batch.native) == 0
        pointer = api.llama_get_logits_ith(context, index)
        return np.ctypeslib.as_array(pointer, shape=(model.info.vocab_size,)).copy()

    decode(PROMPT[:98], 0)
    right = decode(DELTA, 98)
    api.llama_memory_clear(memory, True)
    decode(PROMPT[:100], 0)
    blob = blobs.export_fresh(context, 0, FULL)
    api.llama_memory_clear(memory, True)
    assert blobs.import_from(context, 0, FULL, blob)
    assert api.llama_memory_seq_rm(memory, 0, 98, -1)
    wrong = decode(DELTA, 98)
    api.llama_free(context)
    runtime.close()
    assert np.abs(wrong - right).max() > 1e-4


def test_a_recurrent_state_of_two_cells_kills_the_process() -> None:
    """Guard: a state's recurrent body must hold one cell."""
    command = [sys.executable, "-c", _TWO_CELLS]
    # Or llama.cpp would call a debugger to print where it was.
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.stdout.strip() == "refused", done.stderr
    assert done.returncode == -signal.SIGABRT


@pytest.mark.parametrize("architecture", ["gemma3", "gemma4", "gpt-oss"])
def test_an_empty_window_does_not_clear_one_that_is_not(architecture: str, test_models: Models) -> None:
    """Guard: the state part of a copied span is emptied by an import that fails, which leaves the rows."""
    runtime = make_runtime(test_models(architecture), context_tokens=1024)
    feed(runtime, PROMPT[:100], start=0)
    segments = runtime._segments
    whole = blobs.export_bytes(runtime._context, 0, FULL)
    assert blobs.import_from(runtime._context, 0, PARTIAL, segments._empty_state)
    assert blobs.export_bytes(runtime._context, 0, FULL) == whole
    segments._drop_state(0)
    assert blobs.export_bytes(runtime._context, 0, PARTIAL) == segments._empty_state.nbytes
    assert blobs.export_bytes(runtime._context, 0, FULL) == segments._layout.rows_bytes(100)
    runtime.close()
