"""The devices that llama.cpp can compute on, and the buffers they hold tensors in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from anchorline.llama import library


class DeviceKind(IntEnum):
    """ggml_backend_dev_type."""

    CPU = 0
    GPU = 1
    INTEGRATED_GPU = 2
    ACCELERATOR = 3
    """Helps the CPU, with tensors in host RAM (BLAS, AMX)."""
    META = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as ggml names it; ``handle`` and ``buffer_handle`` are its pointers."""

    name: str
    """``CUDA0``, ``Vulkan1``, ``CPU``, …"""
    kind: DeviceKind
    backend: str
    buffer_name: str
    handle: int
    buffer_handle: int


def list_devices() -> tuple[Device, ...]:
    """Every device of this build of llama.cpp, in ggml's order; the CPU is among them."""
    handles = [library.ggml_backend_dev_get(index) for index in range(library.ggml_backend_dev_count())]
    return tuple(_describe(handle) for handle in handles)


def chosen_by_default(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that llama.cpp puts layers on when none is named, in its order.

    Remote GPUs come first; integrated GPUs count only where there is no other of this machine.
    """
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    remote = [device for device in gpus if device.backend == "RPC"]
    local = [device for device in gpus if device.backend != "RPC"]
    integrated = [device for device in devices if device.kind is DeviceKind.INTEGRATED_GPU]
    # Of integrated GPUs, those of the first backend: two backends would show the same chip twice.
    same_chip = [device for device in integrated if device.backend == integrated[0].backend]
    return (*remote, *(local or same_chip))


def names_of(devices: Sequence[Device]) -> str:
    """Names for a message: ``CUDA0, CUDA1``."""
    return ", ".join(device.name for device in devices)


def _describe(handle: int) -> Device:
    buffer = library.ggml_backend_dev_buffer_type(handle)
    return Device(
        name=library.ggml_backend_dev_name(handle).decode(),
        kind=DeviceKind(library.ggml_backend_dev_type(handle)),
        backend=library.ggml_backend_reg_name(library.ggml_backend_dev_backend_reg(handle)).decode(),
        buffer_name=library.ggml_backend_buft_name(buffer).decode() if buffer else "",
        handle=handle,
        buffer_handle=buffer or 0,
    )
