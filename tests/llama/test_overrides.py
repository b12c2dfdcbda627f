"""Metadata that llama.cpp would be told wrongly: refused where it can only end the process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from anchorline.config import MetadataValue, ModelConfig
from anchorline.errors import ConfigError
from anchorline.llama import testmodel
from anchorline.llama.gguf_file import number_in_file
from anchorline.llama.model import Model, load_model
from anchorline.llama.overrides import FREE_NUMBERS, check_overrides

ARCHITECTURES = ("llama", "gpt-oss", "qwen35")
EXTREMES = (0, 1, 999_999, float("nan"), -1.0)

_TRY_EVERY_KEY = """
import sys
from anchorline.config import ContextConfig, ModelConfig
from anchorline.errors import AnchorlineError
from anchorline.llama.model import load_model
from anchorline.llama.runtime import LlamaRuntime
values = eval(sys.argv[1], {"nan": float("nan"), "inf": float("inf")})
context = ContextConfig(context_tokens=256, batch_tokens=32, ubatch_tokens=32, threads=1)
served = refused = 0
for path in sys.argv[2:]:
    with_keys = load_model(ModelConfig(model=path))
    family = with_keys.info.architecture
    keys = [key for key in with_keys.info.metadata if family == "llama" or key.startswith(family)]
    keys.append(f"{family}.rope.scaling.original_context_length")
    with_keys.close()
    for key in keys:
        for value in values:
            try:
                model = load_model(ModelConfig(model=path, override_metadata=((key, value),)))
                LlamaRuntime(model, context, sequences=1).close()
                served += 1
            except AnchorlineError:
                refused += 1
print(served, refused)
"""


@pytest.fixture(scope="module")
def paths(test_models: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Test models as files, by architecture."""
    folder = tmp_path_factory.mktemp("models")
    made = {name: folder / f"{name}.gguf" for name in ARCHITECTURES}
    for name, path in made.items():
        testmodel.save(test_models(name).handle, path)
    return made


def refuse(path: Path, key: str, value: MetadataValue) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(ModelConfig(model=str(path), override_metadata=((key, value),)))
    return str(caught.value)


def test_no_number_for_any_key_ends_the_process(paths: dict[str, Path]) -> None:
    command = [sys.executable, "-c", _TRY_EVERY_KEY, repr(EXTREMES), *map(str, paths.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    served, refused = map(int, done.stdout.split())
    assert served > 50
    assert refused > 50


@pytest.mark.parametrize(
    "rest", ["block_count", "embedding_length", "attention.head_count", "vocab_size", "expert_count", "new_count"]
)
def test_numbers_that_describe_tensors_are_refused(paths: dict[str, Path], rest: str) -> None:
    message = refuse(paths["llama"], f"llama.{rest}", 999_999)
    assert message.startswith(f"--override-kv llama.{rest}: ")
    assert "context_length" in message
    with pytest.raises(ConfigError, match="describes the tensors"):
        load_model(ModelConfig(model="test:llama", override_metadata=((f"llama.{rest}", 1),)))


def test_fewer_experts_may_be_used_but_not_more_than_there_are(paths: dict[str, Path]) -> None:
    path, key = paths["gpt-oss"], "gpt-oss.expert_used_count"
    experts = number_in_file(path, "gpt-oss.expert_count")
    assert experts == 4
    for used in (1, experts):
        load_model(ModelConfig(model=str(path), override_metadata=((key, used),))).close()
    for used in (0, experts + 1):
        assert refuse(path, key, used) == f"--override-kv {key} must lie between 1 and 4, not {used}"
    assert "describes the tensors" in refuse(paths["llama"], "llama.expert_used_count", 1)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "gemma3", "of its own architecture"),
        ("llama.rope.scaling.type", "cubic", "must be one of none, linear, yarn, longrope"),
        ("llama.rope.freq_base", float("nan"), "no usable number"),
        ("llama.rope.freq_base", float("inf"), "no usable number"),
        ("llama.attention.layer_norm_rms_epsilon", -1.0, "no usable number"),
        ("llama.context_length", 0, "between 1 and 2147483647"),
        ("llama.context_length", 2**31, "between 1 and 2147483647"),
    ],
)
def test_other_values_that_llama_cpp_cannot_use(key: str, value: MetadataValue, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_overrides([("general.name", "x"), (key, value)], number_in_file=lambda key: None)


def test_what_describes_no_tensor_is_free() -> None:
    free: list[tuple[str, MetadataValue]] = [(f"llama.{rest}", 777) for rest in FREE_NUMBERS]
    free += [("tokenizer.ggml.bos_token_id", 3), ("tokenizer.ggml.pre", "qwen2"), ("unread", 5)]
    free += [("llama.rope.freq_base", 5.0), ("llama.attention.causal", True), ("llama.rope.scaling.type", "yarn")]
    check_overrides(free, number_in_file=lambda key: None)


def test_a_number_that_the_file_does_not_hold(paths: dict[str, Path]) -> None:
    assert number_in_file(paths["llama"], "llama.unheard_of") is None
    assert number_in_file(paths["llama"], "general.architecture") is None
