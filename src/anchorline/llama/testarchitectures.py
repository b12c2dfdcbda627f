"""The shapes of the ``test:ARCH`` models: one entry for each way llama.cpp keeps its memory.

Hybrids have at least two layers of each type, windows are 64 tokens, and heads hold a multiple of
32 values so that every KV type packs them. The keys are those of GGUF files, below ``ARCH.``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Value: TypeAlias = int | float | bool | str | Sequence[int] | Sequence[bool]

WINDOW = 64
"""Sliding window of the windowed test models, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestArchitecture:
    """Shape of one test model; ``extra`` are further keys below ``ARCH.``.

    Head counts and feed-forward lengths may differ from layer to layer; no KV heads mean a layer
    without attention.
    """

    __test__ = False

    architecture: str = ""
    """llama.cpp's name, where it is not the entry's own."""
    embedding_length: int = 64
    layers: int = 4
    heads: int | Sequence[int] = 2
    kv_heads: int | Sequence[int] = 1
    feed_forward_length: int | Sequence[int] = 128
    extra: Mapping[str, Value] = field(default_factory=dict)


_EXPERTS: Mapping[str, Value] = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}
_SHARED_EXPERT: Mapping[str, Value] = {**_EXPERTS, "expert_shared_feed_forward_length": 64}
_STATE_SPACE: Mapping[str, Value] = {
    "ssm.inner_size": 128,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
_DELTA_NET: Mapping[str, Value] = {
    "full_attention_interval": 2,
    "ssm.inner_size": 128,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 64,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 2,
}
_MROPE: Mapping[str, Value] = {"rope.dimension_sections": (8, 8, 8, 8)}
_EVERY_OTHER = (0, 1, 0, 1)

ARCHITECTURES: Mapping[str, TestArchitecture] = {
    "llama": TestArchitecture(),
    "qwen3moe": TestArchitecture(extra=_EXPERTS),
    "deepseek2": TestArchitecture(
        kv_heads=1,
        extra={
            **_EXPERTS,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "attention.q_lora_rank": 32,
            "attention.kv_lora_rank": 64,
            "attention.key_length": 96,
            "attention.value_length": 64,
            "attention.key_length_mla": 64,
            "attention.value_length_mla": 32,
            "rope.dimension_count": 32,
        },
    ),
    "gemma3": TestArchitecture(extra={"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 2}),
    "gemma4": TestArchitecture(
        extra={
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": (True, False, True, False),
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.key_length_swa": 32,
            "attention.value_length_swa": 32,
            "rope.dimension_count_swa": 32,
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 32,
        },
    ),
    "gpt-oss": TestArchitecture(
        extra={**_EXPERTS, "attention.sliding_window": WINDOW, "attention.key_length": 32, "attention.value_length": 32}
    ),
    "qwen35": TestArchitecture(kv_heads=2, extra={**_DELTA_NET, **_MROPE}),
    "qwen35moe": TestArchitecture(kv_heads=2, extra={**_DELTA_NET, **_MROPE, **_SHARED_EXPERT}),
    "qwen3next": TestArchitecture(kv_heads=2, extra={**_DELTA_NET, **_SHARED_EXPERT}),
    "lfm2": TestArchitecture(kv_heads=_EVERY_OTHER, extra={"shortconv.l_cache": 3}),
    "lfm2-windowed": TestArchitecture(
        architecture="lfm2",
        kv_heads=_EVERY_OTHER,
        extra={"shortconv.l_cache": 3, "attention.sliding_window": WINDOW},
    ),
    "granitehybrid": TestArchitecture(
        kv_heads=_EVERY_OTHER,
        extra={**_STATE_SPACE, "logit_scale": 1.0, "residual_scale": 1.0, "embedding_scale": 1.0},
    ),
    "falcon-h1": TestArchitecture(extra={**_STATE_SPACE, "attention.key_length": 32, "attention.value_length": 32}),
    "jamba": TestArchitecture(kv_heads=_EVERY_OTHER, extra=_STATE_SPACE),
    "nemotron_h": TestArchitecture(
        # One kind of layer at a time: state space, attention and feed-forward, in turn.
        layers=6,
        kv_heads=(0, 1, 0, 0, 1, 0),
        feed_forward_length=(0, 0, 128, 0, 0, 128),
        extra={
            **_STATE_SPACE,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.key_length": 32,
            "attention.value_length": 32,
        },
    ),
    "mamba": TestArchitecture(heads=0, kv_heads=0, feed_forward_length=0, extra=_STATE_SPACE),
    "mamba2": TestArchitecture(heads=0, kv_heads=0, feed_forward_length=0, extra=_STATE_SPACE),
    "rwkv7": TestArchitecture(
        heads=0,
        kv_heads=0,
        extra={
            "attention.layer_norm_epsilon": 1e-5,
            "wkv.head_size": 64,
            "attention.decay_lora_rank": 16,
            "attention.iclr_lora_rank": 16,
            "attention.value_residual_mix_lora_rank": 16,
            "attention.gate_lora_rank": 16,
        },
    ),
}
