"""Models that all tests share; each is made once per session."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from anchorline.config import ModelConfig
from anchorline.llama import testmodel
from anchorline.llama.model import Model, default_model_path, load_model
from anchorline.llama.runtime import LlamaRuntime
from tests.support.cut_gguf import cut_layers
from tests.support.runtimes import make_runtime

# The same examples on every run, so that a change is judged by what it changed. To look for new ones:
# HYPOTHESIS_PROFILE=explore make tests
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


# Whatever a test starts, nothing of it is written to the user's own cache directory.
_caches = tempfile.TemporaryDirectory(prefix="anchorline-tests-")
os.environ["XDG_CACHE_HOME"] = _caches.name


@pytest.fixture(scope="session")
def test_models() -> Iterator[Callable[[str], Model]]:
    """``test:ARCH`` by ARCH, each built once."""
    models: dict[str, Model] = {}

    def get(architecture: str) -> Model:
        if architecture not in models:
            models[architecture] = load_model(ModelConfig(model=f"test:{architecture}"))
        return models[architecture]

    yield get
    for model in models.values():
        model.close()


@pytest.fixture(scope="session")
def test_llama_model(test_models: Callable[[str], Model]) -> Model:
    """``test:llama``, random weights with plain attention."""
    return test_models("llama")


@pytest.fixture(scope="session")
def spelling_model() -> Iterator[Model]:
    """``test:llama`` with the vocabulary that spells any text."""
    model = load_model(ModelConfig(model="test:llama", test_spelling=True))
    yield model
    model.close()


@pytest.fixture(scope="session")
def test_llama_path(test_llama_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``test:llama`` saved to a file of under a megabyte."""
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    testmodel.save(test_llama_model.handle, path)
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The installed default model, whole."""
    return default_model_path()


@pytest.fixture(scope="session")
def tiny_smollm2_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model cut to 2 layers with a context of 32768: real tokenizer and template, quick."""
    path = tmp_path_factory.mktemp("models") / "smollm2-2-layers.gguf"
    cut_layers(smollm2_path, path, layers=2, context_tokens=32768)
    return path


@pytest.fixture(scope="session")
def smollm2_model(smollm2_path: Path) -> Iterator[Model]:
    model = load_model(ModelConfig(model=str(smollm2_path)))
    yield model
    model.close()


@pytest.fixture(scope="session")
def tiny_smollm2_model(tiny_smollm2_path: Path) -> Iterator[Model]:
    model = load_model(ModelConfig(model=str(tiny_smollm2_path)))
    yield model
    model.close()


@pytest.fixture
def runtime(test_llama_model: Model) -> Iterator[LlamaRuntime]:
    """A fresh runtime on ``test:llama``: 3 sequences, 2048 cells, one thread."""
    made = make_runtime(test_llama_model)
    yield made
    made.close()
