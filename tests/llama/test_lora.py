"""LoRA adapters change what the model says, by their scale."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from anchorline.config import ModelConfig
from anchorline.llama.model import load_model
from tests.support.runtimes import Logits, feed, make_runtime, random_tokens

RANK = 4


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random adapter for one weight of ``test:llama``, (64, 64)."""
    path = tmp_path_factory.mktemp("lora") / "adapter.gguf"
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    writer.add_tensor("blk.1.attn_output.weight.lora_a", random.normal(size=(RANK, 64)).astype(np.float32))
    writer.add_tensor("blk.1.attn_output.weight.lora_b", random.normal(size=(64, RANK)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits_with(*lora: tuple[str, float]) -> Logits:
    model = load_model(ModelConfig(model="test:llama", lora=lora))
    runtime = make_runtime(model, context_tokens=256)
    values = feed(runtime, random_tokens(50), start=0)
    runtime.close()
    model.close()
    return values


def test_an_adapter_is_applied_with_its_scale(adapter: Path) -> None:
    without = logits_with()
    full, half = logits_with((str(adapter), 1.0)), logits_with((str(adapter), 0.5))
    assert np.abs(full - without).max() > 0.1
    assert np.abs(half - without).max() > 0.1
    assert np.abs(half - full).max() > 0.1
    np.testing.assert_allclose(logits_with((str(adapter), 0.0)), without, atol=1e-4)


def test_adapters_add_up(adapter: Path) -> None:
    twice = logits_with((str(adapter), 0.5), (str(adapter), 0.5))
    np.testing.assert_allclose(twice, logits_with((str(adapter), 1.0)), atol=1e-2)
