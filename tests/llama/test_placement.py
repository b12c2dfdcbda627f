"""Where a model goes: decided from the devices there are, and what llama.cpp makes of it on this machine."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchorline.config import GPU_LAYERS_ALL, ModelConfig
from anchorline.errors import ConfigError, ModelError
from anchorline.llama import model_params
from anchorline.llama.devices import Device, DeviceKind, chosen_by_default, list_devices
from anchorline.llama.library import api
from anchorline.llama.model import load_model
from anchorline.llama.model_params import BufferOverride, metadata_overrides, native_model_params
from anchorline.llama.placement import Placement, plan_placement
from tests.support.runtimes import Logits, feed, make_runtime, random_tokens


def device(name: str, kind: DeviceKind = DeviceKind.GPU, *, backend: str = "CUDA") -> Device:
    number = 1 + sum(name.encode())
    return Device(
        name=name, kind=kind, backend=backend, buffer_name=name, handle=number, buffer_handle=number + (1 << 20)
    )


CPU = device("CPU", DeviceKind.CPU, backend="CPU")
BLAS = device("BLAS", DeviceKind.ACCELERATOR, backend="BLAS")
FIRST, SECOND = device("CUDA0"), device("CUDA1")
REMOTE = device("RPC0", backend="RPC")
CHIP, SAME_CHIP = (
    device(name, DeviceKind.INTEGRATED_GPU, backend=backend)
    for name, backend in (("Vulkan0", "Vulkan"), ("SYCL0", "SYCL"))
)
TWO = (FIRST, SECOND, CPU)


def plan(there: tuple[Device, ...] = TWO, **options: Any) -> Placement:
    return plan_placement(ModelConfig(**options), there)


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ((CPU,), ()),
        ((BLAS, CPU), ()),
        (TWO, (FIRST, SECOND)),
        ((FIRST, REMOTE, CPU), (REMOTE, FIRST)),
        ((CHIP, FIRST, CPU), (FIRST,)),
        ((CHIP, REMOTE, CPU), (REMOTE, CHIP)),
        ((CHIP, SAME_CHIP, CPU), (CHIP,)),
    ],
)
def test_devices_chosen_by_default(devices: tuple[Device, ...], chosen: tuple[Device, ...]) -> None:
    assert chosen_by_default(devices) == chosen
    placement = plan(devices)
    assert (placement.devices, placement.named, placement.warnings) == (chosen, False, ())


def test_devices_by_name() -> None:
    assert plan().devices == (FIRST, SECOND)
    for names, chosen in ((("CUDA1", "cuda0"), (SECOND, FIRST)), (("CUDA1",), (SECOND,)), (("none",), ())):
        placement = plan(devices=names)
        assert (placement.devices, placement.named) == (chosen, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": ("CUDA2",)}, "no device 'CUDA2' for layers; the devices are: CUDA0, CUDA1"),
        ({"devices": ("CPU",)}, "no device 'CPU' for layers"),
        ({"devices": ("none", "CUDA0")}, "no device 'none'"),
        ({"devices": ("CUDA0", "CUDA0")}, "--device names CUDA0 twice"),
        ({"main_gpu": 2}, "--main-gpu 2 is no index into the 2 devices: CUDA0, CUDA1"),
        ({"main_gpu": 1, "devices": ("CUDA1",)}, "--main-gpu 1 is no index into the 1 devices: CUDA1"),
        ({"tensor_split": (1.0, 1.0, 1.0)}, "--tensor-split has 3 shares for 2 devices"),
        ({"tensor_split": (0.0, 0.0)}, "no device a share"),
        ({"split_mode": "tensor", "devices": ("none",)}, "--split-mode tensor needs a GPU, but --device none"),
        ({"override_tensor": (("exps", "CUDA7"),)}, "no buffer 'CUDA7'; the buffers are: CPU, CUDA0, CUDA1"),
        ({"override_tensor": (("", "CPU"),)}, "the pattern is empty"),
        ({"cpu_moe_layers": -1}, "--n-cpu-moe must lie between 0 and 512"),
        ({"cpu_ffn_layers": 513}, "--n-cpu-ffn must lie between 0 and 512"),
    ],
)
def test_what_cannot_be_done(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**options)


def test_a_device_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="no device 'CUDA0' for layers; there is only the CPU"):
        plan((CPU,), devices=("CUDA0",))


def test_what_has_no_effect_is_said_once() -> None:
    options: dict[str, Any] = {"gpu_layers": 7, "tensor_split": (3.0, 1.0), "main_gpu": 1, "split_mode": "row"}
    (warning,) = plan((CPU,), **options).warnings
    for part in ("--gpu-layers 7", "--tensor-split 3,1", "--main-gpu 1", "--split-mode row", "no GPU backend"):
        assert part in warning
    assert "--gpu-layers all" in plan((CPU,), gpu_layers=GPU_LAYERS_ALL).warnings[0]
    (warning,) = plan(gpu_layers=7, devices=("none",)).warnings
    assert warning == "no effect of --gpu-layers 7: --device none keeps the model on the CPU"
    assert plan((CPU,), split_mode="none", gpu_layers=0).warnings == ()


def test_what_two_gpus_do_not_need() -> None:
    assert plan(tensor_split=(3.0, 1.0), split_mode="row").warnings == ()
    assert plan(main_gpu=1, split_mode="none").warnings == ()
    (warning,) = plan(main_gpu=1, split_mode="none", tensor_split=(1.0, 1.0)).warnings
    assert "--tensor-split has no effect" in warning
    assert "CUDA1 holds the model" in warning
    (warning,) = plan(main_gpu=1).warnings
    assert "--main-gpu 1 has no effect with --split-mode layer" in warning


def test_buffers_in_order() -> None:
    placement = plan(override_tensor=(("a", "CUDA1"), ("b", "CPU")), cpu_moe=True, cpu_moe_layers=2, cpu_ffn_layers=1)
    host = CPU.buffer_handle
    assert placement.buffers == (
        ("a", SECOND.buffer_handle),
        ("b", host),
        (r"\.ffn_(up|down|gate|gate_up)_(ch|)exps", host),
        (r"blk\.(0|1)\.ffn_(up|down|gate|gate_up)_(ch|)exps", host),
        (r"blk\.(0)\.ffn_(up|down|gate)\.", host),
    )


def test_the_struct_holds_what_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    # Made-up pointers: nothing is loaded with them.
    monkeypatch.setattr(model_params, "list_devices", lambda: TWO)
    config = ModelConfig(devices=("CUDA1", "CUDA0"), tensor_split=(3.0, 1.0), cpu_moe=True, repack=False, no_host=True)
    native = native_model_params(config)
    struct = native.struct
    (devices, *_others) = native.pointees
    assert struct.devices == ctypes.addressof(devices)
    assert list(devices) == [SECOND.handle, FIRST.handle, None]
    assert [struct.tensor_split[index] for index in range(3)] == [3.0, 1.0, 0.0]
    buffers = ctypes.cast(struct.tensor_buft_overrides, ctypes.POINTER(BufferOverride))
    assert buffers[0].pattern == rb"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    assert (buffers[0].buffer, buffers[1].pattern) == (CPU.buffer_handle, None)
    assert (struct.use_extra_bufts, struct.no_host, struct.check_tensors) == (False, True, False)
    for mode, value in (("none", 0), ("layer", 1), ("row", 2), ("tensor", 3)):
        assert native_model_params(ModelConfig(split_mode=mode)).struct.split_mode == value


def test_without_options_llama_cpp_chooses() -> None:
    struct, default = native_model_params(ModelConfig()).struct, api.llama_model_default_params()
    for name in ("devices", "tensor_buft_overrides", "n_gpu_layers", "split_mode", "main_gpu", "check_tensors"):
        assert getattr(struct, name) == getattr(default, name)
    for name in ("use_extra_bufts", "no_host"):
        assert getattr(struct, name) == getattr(default, name)
    assert not struct.tensor_split
    assert not struct.kv_overrides


def test_this_machine_has_a_cpu() -> None:
    found = {found.name: found for found in list_devices()}
    assert found["CPU"].kind is DeviceKind.CPU
    assert found["CPU"].buffer_name == "CPU"


@pytest.mark.parametrize("pattern", ["blk.(", "a[", "*", "a{2"])
def test_a_bad_pattern_is_named(pattern: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_model(ModelConfig(model="test:llama", override_tensor=(("attn", "CPU"), (pattern, "CPU"))))
    assert f"--override-tensor {pattern}: the pattern is no regular expression" in str(caught.value)


def test_a_pattern_may_be_what_python_would_refuse() -> None:
    load_model(ModelConfig(model="test:llama", override_tensor=((r"[[:digit:]]\.attn|\cA", "CPU"),))).close()


def overridden(caplog: pytest.LogCaptureFixture, **options: Any) -> set[str]:
    """Names of the weights that llama.cpp says it placed by a pattern."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="anchorline.llama"):
        load_model(ModelConfig(model="test:qwen3moe", **options)).close()
    words = [record.message.split() for record in caplog.records if "buffer type overridden to CPU" in record.message]
    return {word[1] for word in words if word[1].endswith(".weight")}


def test_llama_cpp_places_what_the_patterns_match(caplog: pytest.LogCaptureFixture) -> None:
    experts = {f"blk.{layer}.ffn_{part}_exps.weight" for layer in range(4) for part in ("up", "down", "gate")}
    assert overridden(caplog) == set()
    assert overridden(caplog, cpu_moe=True) == experts
    assert overridden(caplog, cpu_moe_layers=2) == {name for name in experts if int(name[4]) < 2}
    assert overridden(caplog, cpu_ffn_layers=4) == set()


def logits(path: Path, **options: Any) -> Logits:
    model = load_model(ModelConfig(model=str(path), **options))
    runtime = make_runtime(model, context_tokens=256)
    values = feed(runtime, random_tokens(50), start=0)
    runtime.close()
    model.close()
    return values


@pytest.mark.parametrize(
    "options",
    [
        {"devices": ("none",)},
        {"devices": ("none",), "gpu_layers": 9, "tensor_split": (1.0, 2.0), "main_gpu": 3},
        {"override_tensor": ((r"blk\.1\.attn", "CPU"),)},
        {"cpu_moe": True, "cpu_moe_layers": 3, "cpu_ffn_layers": 3},
        {"repack": False},
        {"no_host": True},
        {"check_tensors": True},
        {"override_metadata": (("general.name", "other"), ("tokenizer.ggml.add_bos_token", False))},
    ],
)
def test_placement_changes_no_answer(test_llama_path: Path, options: dict[str, Any]) -> None:
    assert np.array_equal(logits(test_llama_path, **options), logits(test_llama_path))


def test_a_needless_flag_warns_once(test_llama_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if chosen_by_default(list_devices()):
        pytest.skip("a GPU is here")
    load_model(ModelConfig(model=str(test_llama_path), gpu_layers=5, tensor_split=(1.0,), main_gpu=1)).close()
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "--gpu-layers 5, --tensor-split 1, --main-gpu 1" in warnings[0]
    with pytest.raises(ConfigError, match="--split-mode tensor needs a GPU, but this build"):
        load_model(ModelConfig(model=str(test_llama_path), split_mode="tensor"))


def test_metadata_is_overridden(test_llama_path: Path) -> None:
    model = load_model(
        ModelConfig(
            model=str(test_llama_path),
            override_metadata=(("llama.context_length", 777), ("llama.rope.freq_base", 5.0), ("unread", "x")),
        )
    )
    assert model.info.train_context_tokens == 777
    model.close()
    base = logits(test_llama_path)
    assert not np.array_equal(logits(test_llama_path, override_metadata=(("llama.rope.freq_base", 5.0),)), base)


def test_check_tensors_finds_invalid_numbers(test_llama_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "nan.gguf"
    data = bytearray(test_llama_path.read_bytes())
    data[-2048:] = np.full(512, np.nan, np.float32).tobytes()
    path.write_bytes(data)
    load_model(ModelConfig(model=str(path))).close()
    with pytest.raises(ModelError, match="invalid data"):
        load_model(ModelConfig(model=str(path), check_tensors=True))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (("k" * 128, 1), "the key must be"),
        (("", 1), "the key must be"),
        (("k", "x" * 128), "the value must be"),
        (("k", 1 << 63), "does not fit in 64 bits"),
    ],
)
def test_metadata_that_does_not_fit(value: tuple[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        metadata_overrides((value,))


def test_the_array_of_metadata() -> None:
    array = metadata_overrides((("a", True), ("b", -7), ("c", 0.5), ("d", "é" * 63)))
    assert [entry.key for entry in array] == [b"a", b"b", b"c", b"d", b""]
    assert [entry.tag for entry in array][:4] == [2, 0, 1, 3]
    assert (array[0].value.val_bool, array[1].value.val_i64, array[2].value.val_f64) == (True, -7, 0.5)
    assert array[3].value.val_str == ("é" * 63).encode()
