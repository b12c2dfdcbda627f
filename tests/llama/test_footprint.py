"""Predicted sizes against those of the loaded model, for every kind of memory."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from anchorline.config import ContextConfig, ModelConfig
from anchorline.llama import library, testarchitectures
from anchorline.llama.footprint import measure
from anchorline.llama.model import Model, load_model
from tests.support.runtimes import make_runtime

SEQUENCES = 5
TOLERANCE = 0.02
MIB = 1 << 20


def check(model: Model, predicted_of: Model, *, type_kv: str) -> None:
    """What is predicted of one model is what the same one, loaded, allocates and exports."""
    config = ContextConfig(context_tokens=4096, threads=1, type_k=type_kv, type_v=type_kv)
    predicted = measure(predicted_of, config, sequences=SEQUENCES)
    with library.log.sizes() as lines:
        runtime = make_runtime(model, sequences=SEQUENCES, context_tokens=4096, type_k=type_kv, type_v=type_kv)
    runtime.close()
    sizes = [float(size) * MIB for line in lines for size in re.findall(r"(?:KV|RS) buffer size = +([0-9.]+)", line)]
    # The first half is that of the small context that was measured.
    assert predicted.kv_bytes == pytest.approx(sum(sizes[len(sizes) // 2 :]), rel=TOLERANCE, abs=0.03 * MIB)
    assert predicted.kind is runtime.capabilities.kind
    assert predicted.row_bytes == runtime.limits.bytes_per_token
    assert predicted.state_bytes == pytest.approx(runtime.capabilities.state_bytes, rel=TOLERANCE)
    assert predicted.weights_bytes == pytest.approx(model.info.size_bytes, rel=TOLERANCE)
    assert predicted.context_tokens == runtime.limits.context_tokens
    assert predicted.compute_bytes > 0


@pytest.mark.parametrize("type_kv", ["f16", "q8_0"])
@pytest.mark.parametrize("architecture", [*testarchitectures.ARCHITECTURES])
def test_predictions_hold(architecture: str, type_kv: str, test_models: Callable[[str], Model]) -> None:
    check(test_models(architecture), test_models(architecture), type_kv=type_kv)


@pytest.mark.parametrize("type_kv", ["f16", "q8_0"])
def test_a_file_is_measured_without_its_weights(smollm2_path: Path, smollm2_model: Model, type_kv: str) -> None:
    weightless = load_model(ModelConfig(model=str(smollm2_path)), weights=False)
    check(smollm2_model, weightless, type_kv=type_kv)
    weightless.close()


def test_a_context_that_fits_nowhere_can_be_measured(smollm2_path: Path) -> None:
    """Nothing is allocated for it: 32 million cells would take hundreds of GiB."""
    model = load_model(ModelConfig(model=str(smollm2_path)), weights=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    footprint = measure(model, ContextConfig(context_tokens=1 << 24), sequences=1)
    model.close()
    assert footprint.kv_bytes == (1 << 24) * (footprint.row_bytes - 12)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
