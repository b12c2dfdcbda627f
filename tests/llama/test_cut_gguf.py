"""A cut model keeps its tokenizer, template and first layers."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from anchorline.config import ModelConfig
from anchorline.errors import AnchorlineError
from anchorline.llama.model import Model, load_model
from tests.support.cut_gguf import cut_layers


def test_everything_but_depth_and_context_is_kept(smollm2_model: Model, tiny_smollm2_model: Model) -> None:
    whole, cut = smollm2_model.info, tiny_smollm2_model.info
    changed = {key for key in whole.metadata if whole.metadata[key] != cut.metadata.get(key)}
    assert changed == {"llama.block_count", "llama.context_length"}
    assert cut.metadata["llama.block_count"] == "2"
    assert cut.train_context_tokens == 32768
    assert cut.chat_template == whole.chat_template
    assert cut.size_bytes < whole.size_bytes / 2
    text = "The tool <|im_start|> said: 42, naïvely."
    ids = smollm2_model.tokenizer.tokenize(text)
    assert np.array_equal(ids, tiny_smollm2_model.tokenizer.tokenize(text))


def test_tensors_are_the_same_bytes(test_llama_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    cut_layers(test_llama_path, path, layers=2)
    whole = {tensor.name: tensor for tensor in gguf.GGUFReader(test_llama_path).tensors}
    cut = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert set(cut) == {name for name in whole if not name.startswith(("blk.2.", "blk.3."))}
    assert all(np.array_equal(tensor.data, whole[name].data) for name, tensor in cut.items())
    model = load_model(ModelConfig(model=str(path)))
    assert model.info.train_context_tokens == 32768
    model.close()


@pytest.mark.parametrize("layers", [0, 5])
def test_layers_that_are_not_there(test_llama_path: Path, tmp_path: Path, layers: int) -> None:
    with pytest.raises(AnchorlineError, match=f"has 4 layers; {layers} cannot be kept"):
        cut_layers(test_llama_path, tmp_path / "cut.gguf", layers=layers)
    assert not (tmp_path / "cut.gguf").exists()
