"""``test:ARCH``: small random-weight models built in memory, for real KV mechanics in milliseconds.

Weights are a function of the seed and the tensor's name alone. A new architecture is one more entry
in ``testarchitectures``; what the tokens are is in ``testvocabulary``.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorline.errors import ConfigError, ModelError
from anchorline.llama import library
from anchorline.llama.library import api
from anchorline.llama.testarchitectures import ARCHITECTURES, TestArchitecture, Value
from anchorline.llama.testvocabulary import (
    BEGINNING,
    CONTROL_TOKENS,
    END_OF_TURN,
    HASHING_WORDS,
    VOCAB_SIZE,
    merges,
    spelling_words,
)

MAX_CONTEXT = 131072

_NORMAL, _CONTROL = 1, 3
_GAINS = {
    "attn_q": 0.3,
    "attn_k": 0.3,
    "attn_v": 0.5,
    "attn_output": 0.5,
    "ffn": 0.1,
    "token_embd": 6.0,
    "output.": 0.5,
}
"""Standard deviations, by trial: attention soft enough that every cell counts, so that one wrong row
shows in the logits, and greedy output that visits about 20 tokens before it goes round in circles."""

_CENTRES = {
    "time_mix_w0": -5.0,
    "time_mix_ln.weight": 1.0,
    "time_mix_k_k": 1.0,
    "time_mix_k_a": 1.0,
    "lerp": 0.5,
}
"""Means of RWKV's own weights: a slow decay, unit norms, and half of the token before."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A model in memory. llama.cpp counts only what it reads from a file, so the sizes are ours."""

    handle: Any
    """The llama_model pointer, which the caller frees."""
    description: str
    parameters: int
    size_bytes: int


def build(
    architecture: str,
    *,
    context_tokens: int,
    seed: int,
    spelling: bool = False,
    control: Sequence[str] = (),
    params: Any = None,
) -> BuiltModel:
    """Build the model, under ``params`` if llama_model_params are given; ``spelling`` chooses that vocabulary.

    It has ``control`` tokens beside those of ChatML.
    Raises ConfigError for an unknown architecture or a context over MAX_CONTEXT, ModelError when
    llama.cpp refuses the model.
    """
    shape = shape_of(architecture)
    if not 1 <= context_tokens <= MAX_CONTEXT:
        raise ConfigError(f"--test-context must lie between 1 and {MAX_CONTEXT}, not {context_tokens}")
    if not 0 <= seed < 1 << 32:
        raise ConfigError(f"--test-seed must lie between 0 and {(1 << 32) - 1}, not {seed}")
    metadata = library.gguf_init_empty()
    try:
        _set_hyperparameters(metadata, architecture, shape, context_tokens)
        _set_vocabulary(metadata, spelling=spelling, control=control)
        sizes: dict[str, tuple[int, int]] = {}
        fill = _filler(seed, sizes)
        params = api.llama_model_default_params() if params is None else params
        with library.log.listen() as lines:
            model = api.llama_model_init_from_user(metadata, fill, None, params)
    finally:
        library.gguf_free(metadata)
    if not model:
        raise ModelError(f"test:{architecture} could not be built: {library.reason(lines, otherwise='unknown reason')}")
    return BuiltModel(
        handle=model,
        description=f"{architecture} of {shape.layers} layers with random weights",
        parameters=sum(values for values, _bytes in sizes.values()),
        size_bytes=sum(nbytes for _values, nbytes in sizes.values()),
    )


def shape_of(architecture: str) -> TestArchitecture:
    """Raises ConfigError for an unknown one."""
    shape = ARCHITECTURES.get(architecture)
    if shape is None:
        raise ConfigError(f"there is no test model '{architecture}'; known are: {', '.join(sorted(ARCHITECTURES))}")
    return shape


def save(model: Any, path: Path) -> None:
    """Write a built model to a GGUF file, so that other programs can load the same weights.

    llama.cpp saves neither the chat template nor metadata that it does not use.
    """
    api.llama_model_save_to_file(model, str(path).encode())


def _set_hyperparameters(metadata: Any, architecture: str, shape: TestArchitecture, context_tokens: int) -> None:
    values: dict[str, Value] = {
        "vocab_size": VOCAB_SIZE,
        "context_length": context_tokens,
        "embedding_length": shape.embedding_length,
        "block_count": shape.layers,
        "feed_forward_length": shape.feed_forward_length,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **shape.extra,
    }
    native_name = shape.architecture or architecture
    _set(metadata, "general.architecture", native_name)
    _set(metadata, "general.name", f"test:{architecture}")
    for key, value in values.items():
        _set(metadata, f"{native_name}.{key}", value)


def _set_vocabulary(metadata: Any, *, spelling: bool, control: Sequence[str]) -> None:
    words = spelling_words(control) if spelling else HASHING_WORDS
    special = len(CONTROL_TOKENS) + (len(control) if spelling else 0)
    types = [_NORMAL] * (VOCAB_SIZE - special) + [_CONTROL] * special
    _set(metadata, "tokenizer.ggml.model", "gpt2" if spelling else "test")
    if spelling:
        _set(metadata, "tokenizer.ggml.pre", "gpt-2")
        _set(metadata, "tokenizer.ggml.bos_token_id", words.index(BEGINNING))  # else it is the id that GPT-2 has
        _set_texts(metadata, "tokenizer.ggml.merges", merges(control))
    _set_texts(metadata, "tokenizer.ggml.tokens", words)
    _set_array(metadata, "tokenizer.ggml.scores", np.zeros(VOCAB_SIZE, np.float32), library.GGUF_TYPE_FLOAT32)
    _set_array(metadata, "tokenizer.ggml.token_type", np.array(types, np.int32), library.GGUF_TYPE_INT32)
    _set(metadata, "tokenizer.ggml.eos_token_id", words.index(END_OF_TURN))
    _set(metadata, "tokenizer.chat_template", _CHAT_TEMPLATE)


def _set(metadata: Any, key: str, value: Value) -> None:
    name = key.encode()
    match value:
        case bool():
            library.gguf_set_val_bool(metadata, name, value)
        case int():
            library.gguf_set_val_u32(metadata, name, value)
        case float():
            library.gguf_set_val_f32(metadata, name, value)
        case str():
            library.gguf_set_val_str(metadata, name, value.encode())
        case [bool(), *_]:
            _set_array(metadata, key, np.array(value, np.bool_), library.GGUF_TYPE_BOOL)
        case _:
            _set_array(metadata, key, np.array(value, np.uint32), library.GGUF_TYPE_UINT32)


def _set_texts(metadata: Any, key: str, texts: Sequence[str]) -> None:
    array = (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts])
    library.gguf_set_arr_str(metadata, key.encode(), array, len(texts))


def _set_array(metadata: Any, key: str, values: npt.NDArray[Any], kind: int) -> None:
    library.gguf_set_arr_data(metadata, key.encode(), kind, values.ctypes.data, values.size)


def _filler(seed: int, sizes: dict[str, tuple[int, int]]) -> Any:
    """The callback that fills one tensor; llama.cpp calls it for each while the model is built.

    It notes values and bytes of each tensor in ``sizes``.
    """

    def fill(tensor: int, _user_data: int | None) -> None:
        name = library.ggml_get_name(tensor).decode()
        count = library.ggml_nelements(tensor)
        sizes[name] = count, library.ggml_nbytes(tensor)
        values = _weights(name, count, seed)
        if library.ggml_nbytes(tensor) == 2 * count:
            values = values.astype(np.float16)
        assert values.nbytes == library.ggml_nbytes(tensor), name
        library.ggml_backend_tensor_set(tensor, values.ctypes.data, 0, values.nbytes)

    return api.llama_model_set_tensor_data_t(fill)


def _weights(name: str, count: int, seed: int) -> npt.NDArray[Any]:
    """Random weights scaled so that the prefix, not just the last token, decides the next one."""
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    noise = generator.standard_normal(count, dtype=np.float32)
    if name.endswith("norm.weight"):
        return 1 + np.float32(0.1) * noise
    if "ssm_a" in name:
        return -np.abs(noise)
    for part, centre in _CENTRES.items():
        if part in name:
            return np.float32(centre) + np.float32(0.1) * noise
    gain = next((gain for part, gain in _GAINS.items() if part in name), 0.3)
    return np.float32(gain) * noise
