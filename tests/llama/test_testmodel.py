"""Test models: seeded, with a usable vocabulary, and the same after a trip through a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from anchorline.config import ModelConfig
from anchorline.errors import ConfigError
from anchorline.llama import testmodel
from anchorline.llama.model import Model, load_model
from tests.llama.chains import every_architecture, greedy
from tests.support.runtimes import feed, make_runtime, random_tokens


def test_what_it_says_of_itself(test_llama_model: Model) -> None:
    info = test_llama_model.info
    assert (info.name, info.architecture, info.vocab_size) == ("test:llama", "llama", 512)
    assert info.train_context_tokens == 32768
    assert info.description == "llama of 4 layers with random weights"
    assert "<|im_start|>" in (info.chat_template or "")
    assert test_llama_model.tokenizer.end_of_generation == {509, 511}


def test_unknown_architectures_name_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no test model 'lama'; known are: deepseek2, falcon-h1, gemma3, "):
        load_model(ModelConfig(model="test:lama"))


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"test_context": 131073}, "--test-context"),
        ({"test_context": 0}, "--test-context"),
        ({"test_seed": -1}, "--test-seed"),
    ],
)
def test_values_out_of_range(options: dict[str, int], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        load_model(ModelConfig(model="test:llama", **options))  # type: ignore[arg-type]


def test_the_largest_context() -> None:
    model = load_model(ModelConfig(model="test:llama", test_context=131072))
    runtime = make_runtime(model, context_tokens=0)
    assert runtime.limits.context_tokens == 131072
    runtime.close()
    model.close()


def _logits(seed: int) -> bytes:
    model = load_model(ModelConfig(model="test:llama", test_seed=seed))
    runtime = make_runtime(model, context_tokens=256)
    values = feed(runtime, random_tokens(50), start=0)
    runtime.close()
    model.close()
    return values.tobytes()


def test_the_seed_decides_the_weights() -> None:
    assert _logits(1) == _logits(1)
    assert _logits(1) != _logits(2)


@every_architecture
def test_greedy_output_has_some_variety(architecture: str, test_models: Callable[[str], Model]) -> None:
    model = test_models(architecture)
    runtime = make_runtime(model, context_tokens=256)
    varieties = []
    for seed in range(3):
        runtime.remove(0, 0)
        first = feed(runtime, random_tokens(100, seed=seed), start=0)
        drawn = set(greedy(runtime, first, 60, start=100))
        varieties.append(len(drawn))
        # Nobody keeps a random model from ending its turn, but the plain one is known not to.
        assert architecture != "llama" or not drawn & model.tokenizer.end_of_generation
    runtime.close()
    assert sorted(varieties)[1] > 10


@every_architecture
def test_the_prefix_decides_the_next_token(architecture: str, test_models: Callable[[str], Model]) -> None:
    runtime = make_runtime(test_models(architecture), context_tokens=512)
    tokens = random_tokens(60)
    other = tokens.copy()
    other[3] = (other[3] + 1) % 500
    first = feed(runtime, tokens, start=0)
    second = feed(runtime, other, start=0, sequence=1)
    runtime.close()
    assert np.abs(first - second).max() > 0.001


def test_both_vocabularies_fit_the_same_weights(test_llama_model: Model, spelling_model: Model) -> None:
    results = []
    for model in (test_llama_model, spelling_model):
        runtime = make_runtime(model, context_tokens=256)
        results.append(feed(runtime, random_tokens(50), start=0))
        runtime.close()
    assert np.array_equal(results[0], results[1])


def test_a_saved_model_is_the_same_model(test_llama_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "saved.gguf"
    testmodel.save(test_llama_model.handle, path)
    saved = load_model(ModelConfig(model=str(path)))
    assert saved.tokenizer.control_tokens == test_llama_model.tokenizer.control_tokens
    assert saved.info.train_context_tokens == 32768
    # llama.cpp counts the tensors of a file; those in memory are counted as they are made.
    assert saved.info.parameters == test_llama_model.info.parameters > 100_000
    assert saved.info.size_bytes == test_llama_model.info.size_bytes > 400_000
    results = []
    for model in (test_llama_model, saved):
        runtime = make_runtime(model, context_tokens=512)
        results.append(feed(runtime, random_tokens(300), start=0))
        runtime.close()
    saved.close()
    assert np.array_equal(results[0], results[1])
