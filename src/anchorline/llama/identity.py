"""What makes exported bytes mean the same to another process: the facts of a namespace.

Every setting of a model, a context and an engine is decided on here. Where layers lie, how many threads compute
and how large batches are changes the last bits of rows as a batch does (which only exact mode minds), and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from anchorline import __version__
from anchorline.config import ContextConfig, EngineConfig, ModelConfig
from anchorline.llama import library
from anchorline.llama.blobs import MemoryLayout
from anchorline.llama.model import model_path
from anchorline.llama.model_file import read_model_file

Fact: TypeAlias = str | int | float | bool

EXPORT_FORMAT = 1
"""Of the bytes that ``llama.segments`` exports; to be raised when they change while llama.cpp stays as it is."""


class Bearing(StrEnum):
    """What a setting does to exported bytes."""

    MEANING = "meaning"
    """Other bytes, or the same that mean something else."""
    LAST_BITS = "last bits"
    """The same up to rounding."""
    NONE = "none"
    APART = "apart"
    """What it stands for is a fact, not the setting itself: a file's content, not its path."""


BEARINGS: Mapping[type, Mapping[str, Bearing]] = {
    ModelConfig: {
        "model": Bearing.APART,
        "lora": Bearing.APART,
        "override_metadata": Bearing.MEANING,
        "test_context": Bearing.APART,
        "test_seed": Bearing.APART,
        "test_spelling": Bearing.APART,
        "test_control": Bearing.APART,
        "gpu_layers": Bearing.LAST_BITS,
        "split_mode": Bearing.LAST_BITS,
        "tensor_split": Bearing.LAST_BITS,
        "main_gpu": Bearing.LAST_BITS,
        "devices": Bearing.LAST_BITS,
        "override_tensor": Bearing.LAST_BITS,
        "cpu_moe": Bearing.LAST_BITS,
        "cpu_moe_layers": Bearing.LAST_BITS,
        "cpu_ffn_layers": Bearing.LAST_BITS,
        "repack": Bearing.LAST_BITS,
        "no_host": Bearing.LAST_BITS,
        "check_tensors": Bearing.NONE,
        "mmap": Bearing.LAST_BITS,  # what is mapped cannot be repacked
        "mlock": Bearing.NONE,
    },
    ContextConfig: {
        "context_tokens": Bearing.APART,  # what was asked for; the runtime knows what was made
        "type_k": Bearing.MEANING,
        "type_v": Bearing.MEANING,
        "flash_attention": Bearing.MEANING,  # it decides how V rows lie
        "rope_scaling": Bearing.MEANING,
        "rope_scale": Bearing.APART,
        "rope_freq_base": Bearing.MEANING,
        "rope_freq_scale": Bearing.APART,
        "yarn_orig_ctx": Bearing.MEANING,
        "yarn_ext_factor": Bearing.MEANING,
        "yarn_attn_factor": Bearing.MEANING,
        "yarn_beta_fast": Bearing.MEANING,
        "yarn_beta_slow": Bearing.MEANING,
        "batch_tokens": Bearing.LAST_BITS,
        "ubatch_tokens": Bearing.LAST_BITS,
        "threads": Bearing.LAST_BITS,
        "threads_batch": Bearing.LAST_BITS,
        "offload_kqv": Bearing.LAST_BITS,
        "op_offload": Bearing.LAST_BITS,
    },
    EngineConfig: {
        "exact": Bearing.MEANING,  # segments are chunks then, whole or not at all
        **dict.fromkeys(
            (
                "parallel",
                "queue",
                "cache",
                "cache_ram_bytes",
                "eviction",
                "pin_budget_bytes",
                "max_pins",
                "max_passes",
                "checkpoint_every",
                "resident_idle",
                "seal",
            ),
            Bearing.NONE,
        ),
    },
}


def namespace_facts(
    model: ModelConfig, context: ContextConfig, engine: EngineConfig, *, layout: MemoryLayout, context_tokens: int
) -> dict[str, Fact]:
    """Facts by the name under which a person knows them, most often a flag.

    ``layout`` and ``context_tokens`` are those of the runtime, after its self-test. Reads a little of the model file
    and of each adapter. Raises ModelError.
    """
    facts: dict[str, Fact] = {
        "llama.cpp": f"{library.build_commit()}, {library.build_description()}",
        "export format": EXPORT_FORMAT,
        "memory layout": _layout_fact(layout),
        "--lora": ", ".join(f"{read_model_file(Path(path).expanduser()).digest}:{scale}" for path, scale in model.lora),
        "--rope-freq-scale": 1 / context.rope_scale if context.rope_scale else context.rope_freq_scale,
        **_model_facts(model, context_tokens=context_tokens),
    }
    if engine.exact:
        facts["--ctx"] = context_tokens
    for config in (model, context, engine):
        facts |= _setting_facts(config, exact=engine.exact)
    return facts


def _model_facts(model: ModelConfig, *, context_tokens: int) -> dict[str, Fact]:
    path = model_path(model)
    if path is None:
        made = (model.test_context, model.test_seed, model.test_spelling, model.test_control)
        return {"model": f"{model.model} of Anchorline {__version__} with {made}"}
    file = read_model_file(path)
    # With such factors llama.cpp takes one set up to the original context, and another for a longer one.
    return {"model": file.digest} | ({"--ctx": context_tokens} if file.has_long_rope else {})


def _setting_facts(config: ModelConfig | ContextConfig | EngineConfig, *, exact: bool) -> dict[str, Fact]:
    counted = {Bearing.MEANING, Bearing.LAST_BITS} if exact else {Bearing.MEANING}
    bearings = BEARINGS[type(config)]
    return {
        declared.metadata["flag"]: _as_fact(getattr(config, declared.name))
        for declared in fields(config)
        if bearings[declared.name] in counted
    }


def _as_fact(value: object) -> Fact:
    return value if isinstance(value, (str, int, float, bool)) else repr(value)


def _layout_fact(layout: MemoryLayout) -> str:
    """All that is known of exports, in words."""
    facts = asdict(layout)
    facts["empty_state"] = hashlib.sha256(layout.empty_state).hexdigest()[:16]
    return ", ".join(f"{name} {value}" for name, value in facts.items())
