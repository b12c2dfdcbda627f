"""Two processes share a namespace when what one exports means the same to the other, and only then."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
import pytest

from anchorline.config import ContextConfig, EngineConfig, ModelConfig
from anchorline.llama.blobs import MemoryLayout
from anchorline.llama.identity import BEARINGS, namespace_facts
from anchorline.llama.model import Model
from anchorline.llama.model_file import SAMPLE_BYTES, read_model_file
from tests.support.runtimes import make_runtime

LAYOUT = MemoryLayout(cell_bytes=12, row_bytes=20, rows_fixed_bytes=24)
Config = TypeVar("Config", ModelConfig, ContextConfig, EngineConfig)
TEST_MODEL = ModelConfig(model="test:llama")


def facts(
    model: ModelConfig = TEST_MODEL, *, layout: MemoryLayout = LAYOUT, context_tokens: int = 1024, **changes: Any
) -> dict[str, Any]:
    """Facts of a configuration in which fields of any part are changed by name."""

    def changed(config: Config) -> Config:
        known = BEARINGS[type(config)]
        return replace(config, **{name: value for name, value in changes.items() if name in known})

    return namespace_facts(
        changed(model),
        changed(ContextConfig()),
        changed(EngineConfig()),
        layout=layout,
        context_tokens=context_tokens,
    )


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


@pytest.mark.parametrize("config", [ModelConfig, ContextConfig, EngineConfig])
def test_every_setting_is_decided_on(config: type) -> None:
    assert BEARINGS[config].keys() == {declared.name for declared in fields(config)}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"type_k": "q8_0"}, "--cache-type-k"),
        ({"type_v": "q8_0"}, "--cache-type-v"),
        ({"flash_attention": "off"}, "--flash-attn"),
        ({"rope_scaling": "yarn"}, "--rope-scaling"),
        ({"rope_freq_base": 5e5}, "--rope-freq-base"),
        ({"rope_scale": 4.0}, "--rope-freq-scale"),
        ({"yarn_orig_ctx": 4096}, "--yarn-orig-ctx"),
        ({"yarn_ext_factor": 1.0}, "--yarn-ext-factor"),
        ({"yarn_attn_factor": 1.0}, "--yarn-attn-factor"),
        ({"yarn_beta_fast": 32.0}, "--yarn-beta-fast"),
        ({"yarn_beta_slow": 1.0}, "--yarn-beta-slow"),
        ({"override_metadata": (("llama.rope.freq_base", 5e5),)}, "--override-kv"),
        ({"test_seed": 1}, "model"),
        ({"test_context": 4096}, "model"),
        ({"test_spelling": True}, "model"),
        ({"layout": MemoryLayout(opaque=True)}, "memory layout"),
    ],
)
def test_what_changes_the_meaning_is_a_fact_that_has_a_name(change: dict[str, Any], named: str) -> None:
    assert differing(facts(), facts(**change)) == {named}


@pytest.mark.parametrize("change", [{"parallel": 1}, {"cache_ram_bytes": 1 << 21}, {"mlock": True}])
def test_what_changes_no_bytes_is_none_in_any_mode(change: dict[str, Any]) -> None:
    assert facts() == facts(**change)
    assert facts(exact=True) == facts(exact=True, **change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpu_layers": 4}, "--gpu-layers"),
        ({"context_tokens": 4096}, "--ctx"),
        ({"threads": 3}, "--threads"),
        ({"ubatch_tokens": 64}, "--ubatch-size"),
    ],
)
def test_what_changes_the_last_bits_is_a_fact_in_exact_mode_alone(change: dict[str, Any], named: str) -> None:
    assert facts() == facts(**change)
    assert differing(facts(exact=True), facts(exact=True, **change)) == {named}


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen35", "lfm2-windowed", "mamba2"])
def test_the_layout_does_not_depend_on_the_size_of_the_context(test_models: Callable[[str], Model], kind: str) -> None:
    small = make_runtime(test_models(kind), context_tokens=256, sequences=1)
    large = make_runtime(test_models(kind), context_tokens=2048, sequences=5)
    assert differing(facts(layout=small.layout), facts(layout=large.layout)) == set()
    large.keep_whole_sequences()
    assert differing(facts(layout=small.layout), facts(layout=large.layout)) == {"memory layout"}
    for runtime in (small, large):
        runtime.close()


def test_exact_mode_shares_nothing_with_the_other() -> None:
    assert "--exact" in differing(facts(), facts(exact=True))


def test_one_scale_is_the_same_however_it_is_given() -> None:
    assert facts(rope_scale=4.0) == facts(rope_freq_scale=0.25)


def test_a_file_is_known_by_its_content_wherever_it_lies(test_llama_path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(test_llama_path, tmp_path / "another name.gguf"))
    at = facts(ModelConfig(model=str(test_llama_path)))
    assert at == facts(ModelConfig(model=str(copy)))
    adapted = facts(ModelConfig(model=str(copy), lora=((str(copy), 0.5),)))
    assert differing(at, adapted) == {"--lora"}
    assert adapted != facts(ModelConfig(model=str(copy), lora=((str(copy), 0.25),)))


def test_another_weight_in_any_tensor_is_another_model(test_llama_path: Path, tmp_path: Path) -> None:
    same = read_model_file(test_llama_path).digest
    copy = tmp_path / "changed.gguf"
    for tensor in gguf.GGUFReader(test_llama_path).tensors:
        shutil.copy(test_llama_path, copy)
        with copy.open("r+b") as file:
            file.seek(tensor.data_offset + min(tensor.n_bytes, SAMPLE_BYTES) // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        assert read_model_file(copy).digest != same, tensor.name


def test_only_a_little_of_a_large_tensor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    pread = os.pread

    def counted(file: int, size: int, offset: int) -> bytes:
        nonlocal read
        read += size
        return pread(file, size, offset)

    path = tmp_path / "large.gguf"
    write_gguf(path, {"large": 1 << 22})
    monkeypatch.setattr("os.pread", counted)
    read_model_file(path)
    assert read == 3 * SAMPLE_BYTES


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    first, second = (tmp_path / f"big-0000{number}-of-00002.gguf" for number in (1, 2))
    write_gguf(first, {"one": 64})
    write_gguf(second, {"two": 64})
    before = read_model_file(first).digest
    write_gguf(second, {"three": 64})
    assert read_model_file(first).digest != before


def test_a_model_whose_factors_depend_on_the_context_has_its_length_as_a_fact(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    write_gguf(path, {"rope_factors_long.weight": 16})
    model = ModelConfig(model=str(path))
    assert differing(facts(model), facts(model, context_tokens=8192)) == {"--ctx"}


def write_gguf(path: Path, tensors: dict[str, int]) -> None:
    """A GGUF file of tensors of zeros by name, each with so many numbers."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, count in tensors.items():
        writer.add_tensor(name, np.zeros(count, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
