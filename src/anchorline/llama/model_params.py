"""``llama_model_params`` from a config, with everything its pointers lead to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anchorline.config import MetadataValue, ModelConfig
from anchorline.errors import ConfigError, ModelError
from anchorline.llama import library, testmodel
from anchorline.llama.devices import DeviceKind, list_devices
from anchorline.llama.library import api
from anchorline.llama.placement import Placement, plan_placement

_SPLIT_MODES = {
    "none": api.LLAMA_SPLIT_MODE_NONE,
    "layer": api.LLAMA_SPLIT_MODE_LAYER,
    "row": api.LLAMA_SPLIT_MODE_ROW,
    "tensor": api.LLAMA_SPLIT_MODE_TENSOR,
}
_OVERRIDE_BYTES = 127
"""Most bytes of a key or a string in llama_model_kv_override."""


class BufferOverride(ctypes.Structure):
    """struct llama_model_tensor_buft_override: tensors by pattern, and the buffer type they go to."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer", ctypes.c_void_p))


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeModelParams:
    """The struct and what it points to.

    llama.cpp keeps the pointers and reads some of them when a context is made, so this must live
    as long as the model.
    """

    struct: Any
    placement: Placement
    pointees: tuple[Any, ...]


def native_model_params(config: ModelConfig) -> NativeModelParams:
    """Check the placement, log what will have no effect, and fill the struct.

    Raises ConfigError naming the flag.
    """
    most_devices: int = api.llama_max_devices()
    if len(config.tensor_split) > most_devices:
        raise ConfigError(f"--tensor-split has {len(config.tensor_split)} shares; llama.cpp takes {most_devices}")
    devices = list_devices()
    placement = plan_placement(config, devices)
    host_buffer = next(device.buffer_handle for device in devices if device.kind is DeviceKind.CPU)
    for pattern, _buffer in config.override_tensor:
        _check_pattern(pattern, host_buffer=host_buffer)
    for warning in placement.warnings:
        library.logger.warning("%s", warning)
    params = api.llama_model_default_params()
    params.n_gpu_layers = config.gpu_layers
    params.split_mode = _SPLIT_MODES[config.split_mode]
    params.main_gpu = config.main_gpu
    params.load_mode = {
        (False, False): api.LLAMA_LOAD_MODE_NONE,
        (True, False): api.LLAMA_LOAD_MODE_MMAP,
        (False, True): api.LLAMA_LOAD_MODE_MLOCK,
        (True, True): api.LLAMA_LOAD_MODE_MMAP_MLOCK,
    }[config.mmap, config.mlock]
    params.check_tensors = config.check_tensors
    params.use_extra_bufts = config.repack
    params.no_host = config.no_host
    device_array, shares = _device_array(placement), _share_array(config, placement)
    buffers = _buffer_array(placement.buffers) if placement.buffers else None
    metadata = metadata_overrides(config.override_metadata)
    if device_array is not None:
        params.devices = ctypes.addressof(device_array)
    if shares is not None:
        params.tensor_split = shares
    if buffers is not None:
        params.tensor_buft_overrides = ctypes.addressof(buffers)
    if metadata is not None:
        params.kv_overrides = metadata
    return NativeModelParams(struct=params, placement=placement, pointees=(device_array, shares, buffers, metadata))


def metadata_overrides(values: tuple[tuple[str, MetadataValue], ...]) -> Any:
    """A llama_model_kv_override array that ends with an empty key, or None; raises ConfigError."""
    if not values:
        return None
    array = (api.llama_model_kv_override * (len(values) + 1))()
    for entry, (key, value) in zip(array, values, strict=False):
        entry.key = _short(key, key, what="key")
        match value:
            case bool():
                entry.tag, entry.value.val_bool = api.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
            case int():
                if not -(1 << 63) <= value < 1 << 63:
                    raise ConfigError(f"--override-kv {key}: {value} does not fit in 64 bits")
                entry.tag, entry.value.val_i64 = api.LLAMA_KV_OVERRIDE_TYPE_INT, value
            case float():
                entry.tag, entry.value.val_f64 = api.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
            case _:
                entry.tag = api.LLAMA_KV_OVERRIDE_TYPE_STR
                entry.value.val_str = _short(value, key, what="value")
    return array


def _short(text: str, key: str, *, what: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if (what == "key" and not data) or len(data) > _OVERRIDE_BYTES or b"\0" in data:
        raise ConfigError(f"--override-kv {key}: the {what} must be text of at most {_OVERRIDE_BYTES} bytes")
    return data


def _device_array(placement: Placement) -> Any:
    if not placement.named:
        return None
    handles = [device.handle for device in placement.devices]
    return (ctypes.c_void_p * (len(handles) + 1))(*handles, None)


def _share_array(config: ModelConfig, placement: Placement) -> Any:
    """One share for each possible device, as llama.cpp reads that many; None when there is nothing to split."""
    if not config.tensor_split or not placement.devices:
        return None
    return (ctypes.c_float * api.llama_max_devices())(*config.tensor_split)


def _buffer_array(overrides: Sequence[tuple[str, int]]) -> Any:
    """An array that ends with a pattern of NULL."""
    array = (BufferOverride * (len(overrides) + 1))()
    for entry, (pattern, handle) in zip(array, overrides, strict=False):
        entry.pattern, entry.buffer = pattern.encode("utf-8", "surrogateescape"), handle
    return array


def _check_pattern(pattern: str, *, host_buffer: int) -> None:
    """Let llama.cpp compile a pattern, which it does while it builds a model: its syntax is not Python's."""
    if "\0" in pattern:
        raise ConfigError(f"--override-tensor {pattern!r}: the pattern holds a NUL")
    params = api.llama_model_default_params()
    no_devices, buffers = (ctypes.c_void_p * 1)(), _buffer_array([(pattern, host_buffer)])
    params.devices, params.tensor_buft_overrides = ctypes.addressof(no_devices), ctypes.addressof(buffers)
    with library.log.listen() as lines:
        try:
            built = testmodel.build("llama", context_tokens=256, seed=0, params=params)
        except ModelError as error:
            why = library.reason(lines, otherwise="llama.cpp refused it")
            raise ConfigError(f"--override-tensor {pattern}: the pattern is no regular expression: {why}") from error
    api.llama_model_free(built.handle)
