"""Every context option is accepted, or refused in words that name its flag."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchorline.config import KV_TYPES, ContextConfig, ModelConfig
from anchorline.errors import ConfigError, ModelError
from anchorline.llama import context, testarchitectures
from anchorline.llama.library import api
from anchorline.llama.model import Model, load_model
from anchorline.machine import physical_cores
from tests.support.runtimes import feed, make_runtime, random_tokens

TOKENS = random_tokens(80)


@pytest.mark.parametrize(("architecture", "spare"), [("llama", 14), ("gemma3", 0), ("qwen35", 0), ("mamba", 0)])
def test_ids_are_spared_where_they_cost_nothing(architecture: str, spare: int) -> None:
    model = load_model(ModelConfig(model=f"test:{architecture}"))
    try:
        assert context.with_spare_ids(model, 6) == 6 + spare
        assert context.with_spare_ids(model, 250) == 250 + min(spare, 5)
    finally:
        model.close()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_tokens": 64, "ubatch_tokens": 32},
        {"batch_tokens": 64},
        {"threads": 2, "threads_batch": 1},
        {"flash_attention": "on"},
        {"flash_attention": "off"},
        {"flash_attention": "auto"},
        {"flash_attention": "off", "type_k": "q8_0"},
        {"offload_kqv": False},
        {"op_offload": False},
        {"rope_scaling": "linear", "rope_scale": 4.0},
        {"rope_scaling": "none"},
        {"rope_scaling": "linear", "rope_freq_scale": 0.5},
        {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 2048, "yarn_ext_factor": 1.0},
        {"yarn_attn_factor": 1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0},
        {"rope_freq_base": 500000.0},
        *({"type_k": name, "type_v": name} for name in KV_TYPES),
    ],
)
def test_options_are_accepted(tiny_smollm2_model: Model, options: dict[str, Any]) -> None:
    runtime = make_runtime(tiny_smollm2_model, context_tokens=256, **options)
    assert np.isfinite(feed(runtime, TOKENS[:50], start=0)).all()
    runtime.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_tokens": -1}, "--ctx must be 0 or more"),
        ({"context_tokens": 1 << 31}, "--ctx must be at most"),
        ({"batch_tokens": 0}, "--batch-size must be 1 or more"),
        ({"ubatch_tokens": 0}, "--ubatch-size must be 1 or more"),
        ({"threads": -1}, "--threads must be 0 or more"),
        ({"threads_batch": -2}, "--threads-batch must be 0 or more"),
        ({"rope_freq_base": -1.0}, "--rope-freq-base must be 0 or more"),
        ({"rope_freq_scale": float("nan")}, "--rope-freq-scale must be 0 or more"),
        ({"rope_scale": -2.0}, "--rope-scale must be 0 or more"),
        ({"rope_scale": 2.0, "rope_freq_scale": 0.5}, "give one of them"),
        ({"yarn_orig_ctx": -1}, "--yarn-orig-ctx must be 0 or more"),
        ({"flash_attention": "maybe"}, "--flash-attn must be one of auto, on, off"),
        ({"rope_scaling": "cubic"}, "--rope-scaling must be one of"),
        ({"type_k": "q3"}, "--cache-type-k must be one of"),
        ({"type_v": "q3"}, "--cache-type-v must be one of"),
        ({"type_v": "q8_0", "flash_attention": "off"}, "--cache-type-v q8_0 .* drop --flash-attn off"),
        ({"sequences": 0}, "--parallel"),
        ({"sequences": 256}, "--parallel and --resident-idle need 256 sequences; 1 to 255"),
    ],
)
def test_options_are_refused_by_name(test_llama_model: Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_runtime(test_llama_model, **options)


def test_options_take_effect(test_llama_model: Model) -> None:
    def result(**options: Any) -> bytes:
        runtime = make_runtime(test_llama_model, **options)
        values = feed(runtime, TOKENS, start=0).tobytes()
        runtime.close()
        return values

    plain = result()
    assert plain == result()
    for options in ({"rope_freq_base": 5000.0}, {"rope_scaling": "linear", "rope_freq_scale": 0.5}, {"type_k": "q4_0"}):
        assert result(**options) != plain, options
    assert result(rope_scale=4.0) == result(rope_freq_scale=0.25) != plain


@pytest.mark.parametrize("asked", [True, False])
def test_op_offload_reaches_llama_cpp(test_llama_model: Model, asked: bool) -> None:
    config = ContextConfig(context_tokens=256, op_offload=asked)
    assert context.context_params(test_llama_model, config, sequences=1).op_offload is asked


def test_splitting_tensors_needs_flash_attention(test_llama_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only a GPU can be loaded to like that.
    monkeypatch.setattr(Model, "split_mode", "tensor")
    with pytest.raises(ConfigError, match="--split-mode tensor needs flash attention; drop --flash-attn off"):
        make_runtime(test_llama_model, flash_attention="off")
    make_runtime(test_llama_model, flash_attention="auto").close()


def test_a_head_that_a_row_type_cannot_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(ModelConfig(model="test:llama"))
    monkeypatch.setattr(context, "_head_lengths", lambda model: (48, 48))
    with pytest.raises(ConfigError, match=r"--cache-type-k q8_0 packs 32 values, which does not divide .* 48"):
        make_runtime(model, type_k="q8_0")
    model.close()


def test_the_largest_number_of_sequences(test_llama_model: Model) -> None:
    runtime = make_runtime(test_llama_model, sequences=255)
    feed(runtime, TOKENS, start=0, sequence=254)
    rows = runtime.export_rows(254, 0, 80, lambda nbytes: memoryview(bytearray(nbytes)))
    assert rows is not None
    assert runtime.import_rows(7, rows, 0, 80)
    runtime.close()


def test_more_sequences_than_a_batch_holds(test_llama_model: Model) -> None:
    """llama.cpp's own default aborts the process here."""
    runtime = make_runtime(test_llama_model, sequences=100, batch_tokens=8)
    assert runtime.limits.batch_tokens == 8
    runtime.close()


def test_no_context_size_takes_the_models(tiny_smollm2_model: Model) -> None:
    runtime = make_runtime(tiny_smollm2_model, context_tokens=0)
    assert runtime.limits.context_tokens == 32768
    runtime.close()


def test_a_context_over_the_trained_one_is_a_warning(test_llama_model: Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="anchorline.llama"):
        runtime = make_runtime(test_llama_model, context_tokens=40000)
    assert "--ctx 40000 is larger than the 32768 tokens" in caplog.text
    assert runtime.limits.context_tokens >= 40000
    runtime.close()


def test_a_small_context_is_rounded_up(test_llama_model: Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        runtime = make_runtime(test_llama_model, context_tokens=32)
    assert "--ctx 32 is rounded up to 256 tokens" in caplog.text
    assert runtime.limits.context_tokens == 256
    assert runtime.limits.batch_tokens == runtime.batch.room == 32
    runtime.close()


def test_a_context_that_does_not_fit_is_an_error(smollm2_model: Model) -> None:
    with pytest.raises(ModelError, match=r"a context of 1000000000 tokens \(--ctx\) needs about .* GiB, but .* GiB"):
        make_runtime(smollm2_model, context_tokens=1_000_000_000)


@pytest.mark.parametrize("architecture", [*testarchitectures.ARCHITECTURES])
@pytest.mark.parametrize("type_kv", ["f16", "q8_0"])
def test_the_estimate_is_what_is_allocated(
    architecture: str, type_kv: str, test_models: Callable[[str], Model], caplog: pytest.LogCaptureFixture
) -> None:
    """Of rows, windows and states, as llama.cpp logs them; of masks, 2 bytes a cell and ubatch token."""
    model = test_models(architecture)
    config = ContextConfig(type_k=type_kv, type_v=type_kv, ubatch_tokens=1)
    estimate = context.context_bytes(model, config, context_tokens=8000, sequences=5)
    with caplog.at_level(logging.DEBUG, logger="anchorline.llama"):
        runtime = make_runtime(model, context_tokens=8000, sequences=5, type_k=type_kv, type_v=type_kv, ubatch_tokens=1)
    runtime.close()
    sizes = re.findall(r"(?:KV|RS) buffer size = +([0-9.]+) MiB", caplog.text)
    # The first half is that of the small context that was measured.
    allocated = sum(float(size) for size in sizes[len(sizes) // 2 :]) * (1 << 20)
    assert estimate is not None
    masks = 2 * (8192 + 512)
    assert abs(estimate - allocated) < masks + len(sizes) * 0.005 * (1 << 20)


def test_each_sequence_adds_its_window_and_state(test_models: Callable[[str], Model]) -> None:
    config = ContextConfig(ubatch_tokens=256)

    def bytes_for(architecture: str, sequences: int) -> int:
        size = context.context_bytes(test_models(architecture), config, context_tokens=8192, sequences=sequences)
        assert size is not None
        return size

    assert bytes_for("llama", 9) == bytes_for("llama", 1)
    # Two layers with two convolution rows of 64 and 128 + 2 × 2 × 64 channels and a state of 64 × 128, all f32.
    assert bytes_for("qwen35", 9) - bytes_for("qwen35", 1) == 8 * 2 * 4 * (3 * (128 + 2 * 2 * 64) + 64 * 128)
    # Two layers of one K and one V head of 32 f16 values, and the mask: 512 cells more.
    assert bytes_for("gemma3", 9) - bytes_for("gemma3", 1) == 8 * 64 * (2 * 2 * 32 * 2 + 2 * 256)


def test_zero_threads_takes_the_cores(test_llama_model: Model) -> None:
    runtime = make_runtime(test_llama_model, threads=0)
    assert api.llama_n_threads(runtime._context) == physical_cores()
    assert api.llama_n_threads_batch(runtime._context) == physical_cores()
    runtime.close()
