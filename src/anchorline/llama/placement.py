"""Where a model goes: which devices take layers, which tensors lie elsewhere. Decided from values alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anchorline.config import GPU_LAYERS_ALL, MAX_LAYERS, ModelConfig
from anchorline.errors import ConfigError
from anchorline.llama.devices import Device, DeviceKind, chosen_by_default, names_of

SPLIT_MODES = ("none", "layer", "row", "tensor")
NO_DEVICE = "none"
"""What ``--device`` is given to keep everything on the CPU."""

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE = r"\.ffn_(up|down|gate)\."


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Devices and buffers that a model is loaded to."""

    devices: tuple[Device, ...]
    """Those that layers may go to, in the order of ``--tensor-split``; none means the CPU alone."""
    split_mode: str
    named: bool
    """Whether ``--device`` chose them; otherwise llama.cpp is left to find the same ones."""
    buffers: tuple[tuple[str, int], ...]
    """Pattern for tensor names and the handle of the buffer type; the first match holds."""
    warnings: tuple[str, ...]
    """What was asked for and will have no effect."""


def plan_placement(config: ModelConfig, devices: Sequence[Device]) -> Placement:
    """Decide from what was asked for and the ``devices`` there are.

    Raises ConfigError, naming the flag and what there is, for what cannot be done.
    """
    if config.split_mode not in SPLIT_MODES:
        raise ConfigError(f"--split-mode must be one of {', '.join(SPLIT_MODES)}, not '{config.split_mode}'")
    if config.main_gpu < 0:
        raise ConfigError(f"--main-gpu must be 0 or more, not {config.main_gpu}")
    if any(not 0 <= share < float("inf") for share in config.tensor_split):
        raise ConfigError(f"--tensor-split takes shares of 0 or more, not {_spelled(config.tensor_split)}")
    chosen = _named(config.devices, devices) if config.devices else chosen_by_default(devices)
    if chosen:
        _check_split(config, chosen)
    elif config.split_mode == "tensor":
        raise ConfigError(f"--split-mode tensor needs a GPU, but {_why_none(config)}")
    return Placement(
        devices=chosen,
        split_mode=config.split_mode,
        named=bool(config.devices),
        buffers=tuple(_buffers(config, devices)),
        warnings=tuple(_unused_on(chosen, config) if chosen else _unused_without_gpu(config)),
    )


def _named(names: Sequence[str], devices: Sequence[Device]) -> tuple[Device, ...]:
    if tuple(names) == (NO_DEVICE,):
        return ()
    # The CPU takes what is left anyway; llama.cpp cannot be given it as a device for layers.
    known = {device.name.casefold(): device for device in devices if device.kind is not DeviceKind.CPU}
    chosen: list[Device] = []
    for name in names:
        device = known.get(name.casefold())
        if device is None:
            there = f"the devices are: {names_of(list(known.values()))}" if known else "there is only the CPU"
            raise ConfigError(f"--device: there is no device '{name}' for layers; {there}")
        if device in chosen:
            raise ConfigError(f"--device names {device.name} twice")
        chosen.append(device)
    return tuple(chosen)


def _check_split(config: ModelConfig, chosen: tuple[Device, ...]) -> None:
    count = len(chosen)
    if config.main_gpu >= count:
        raise ConfigError(f"--main-gpu {config.main_gpu} is no index into the {count} devices: {names_of(chosen)}")
    if len(config.tensor_split) > count:
        raise ConfigError(
            f"--tensor-split has {len(config.tensor_split)} shares for {count} devices: {names_of(chosen)}"
        )
    if config.tensor_split and not any(config.tensor_split):
        raise ConfigError("--tensor-split gives no device a share of more than 0")


def _buffers(config: ModelConfig, devices: Sequence[Device]) -> Iterator[tuple[str, int]]:
    """Explicit patterns come first, so that they can except single tensors from the others."""
    known = {device.buffer_name: device.buffer_handle for device in devices if device.buffer_handle}
    for pattern, buffer in config.override_tensor:
        if buffer not in known:
            raise ConfigError(
                f"--override-tensor {pattern}={buffer}: there is no buffer '{buffer}'; "
                f"the buffers are: {', '.join(sorted(known))}"
            )
        if not pattern:
            raise ConfigError(f"--override-tensor ={buffer}: the pattern is empty")
        yield pattern, known[buffer]
    host = next((device.buffer_handle for device in devices if device.kind is DeviceKind.CPU), 0)
    if config.cpu_moe:
        yield _EXPERTS, host
    for flag, count, tensors in (
        ("--n-cpu-moe", config.cpu_moe_layers, _EXPERTS),
        ("--n-cpu-ffn", config.cpu_ffn_layers, _DENSE),
    ):
        if not 0 <= count <= MAX_LAYERS:
            raise ConfigError(f"{flag} must lie between 0 and {MAX_LAYERS}, not {count}")
        if count:
            # One pattern for all layers: llama.cpp compiles each anew for every tensor.
            yield rf"blk\.({'|'.join(map(str, range(count)))}){tensors}", host


def _unused_on(chosen: tuple[Device, ...], config: ModelConfig) -> Iterator[str]:
    if config.split_mode == "none" and config.tensor_split:
        yield f"--tensor-split has no effect with --split-mode none: {chosen[config.main_gpu].name} holds the model"
    if config.split_mode != "none" and config.main_gpu:
        yield f"--main-gpu {config.main_gpu} has no effect with --split-mode {config.split_mode}; it needs 'none'"


def _unused_without_gpu(config: ModelConfig) -> Iterator[str]:
    flags = []
    if config.gpu_layers > 0 or config.gpu_layers == GPU_LAYERS_ALL:
        flags.append(f"--gpu-layers {'all' if config.gpu_layers < 0 else config.gpu_layers}")
    if config.split_mode == "row":
        flags.append("--split-mode row")
    if config.tensor_split:
        flags.append(f"--tensor-split {_spelled(config.tensor_split)}")
    if config.main_gpu:
        flags.append(f"--main-gpu {config.main_gpu}")
    if flags:
        yield f"no effect of {', '.join(flags)}: {_why_none(config)}"


def _why_none(config: ModelConfig) -> str:
    if config.devices:
        return "--device none keeps the model on the CPU"
    return "this build of llama.cpp has no GPU backend, or it found no GPU"


def _spelled(shares: Sequence[float]) -> str:
    return ",".join(f"{share:g}" for share in shares)
