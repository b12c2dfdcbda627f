"""Making a llama_context: every option checked and passed through, and a size that fits in memory."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from typing import Any

import numpy as np

from anchorline.config import ContextConfig
from anchorline.errors import ConfigError, ModelError
from anchorline.llama import capabilities, library
from anchorline.llama.batch import LlamaBatch
from anchorline.llama.blobs import MemoryLayout
from anchorline.llama.interface import MemoryKind
from anchorline.llama.library import api
from anchorline.llama.model import Model
from anchorline.machine import physical_cores, read_memory

MOST_THREADS_PER_CPU = 8
_MIN_OUTPUTS = 64
SPARE_SEQUENCES = 14
_CELL_PADDING = 256
_MASK_BYTES = 2
"""Of one cell and one token of a ubatch."""
_PROBE_BATCH_TOKENS = 32
_MAX_CONTEXT_TOKENS = (1 << 31) - _CELL_PADDING
_FLASH_ATTENTION = {
    "auto": api.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": api.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": api.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_ROPE_SCALING = {
    "model": api.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
    "none": api.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": api.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": api.LLAMA_ROPE_SCALING_TYPE_YARN,
}


def create_context(model: Model, config: ContextConfig, *, sequences: int) -> Any:
    """A llama_context for ``sequences`` ids and one scratch id more; the caller frees it.

    Raises ConfigError naming the flag of an unusable setting, ModelError when the context does not
    fit in memory or llama.cpp refuses it.
    """
    _check_threads(config, os.cpu_count() or 1)
    params = context_params(model, config, sequences=sequences)
    memory = None if _on_gpu(model, config) else read_memory()
    # Linux grants memory that it does not have and kills the process when it is touched later.
    if memory is not None:
        needed = context_bytes(model, config, context_tokens=params.n_ctx, sequences=sequences)
        if needed is not None and needed > memory.available_bytes:
            raise ModelError(
                f"a context of {params.n_ctx} tokens (--ctx) needs about {_gib(needed)}, but "
                f"{_gib(memory.available_bytes)} are available; lower --ctx, or shrink the rows with --cache-type-k "
                f"and --cache-type-v"
            )
    with library.log.listen() as lines:
        context = api.llama_init_from_model(model.handle, params)
    if not context:
        why = library.reason(lines, otherwise="llama.cpp gave no reason")
        raise ModelError(f"the context of {params.n_ctx} tokens (--ctx) cannot be made: {why}")
    made: int = api.llama_n_ctx(context)
    if config.context_tokens and made > config.context_tokens:
        library.logger.info("--ctx %d is rounded up to %d tokens", config.context_tokens, made)
    if not api.llama_get_memory(context):
        api.llama_free(context)
        raise ModelError(f"{model.info.name} has no KV cache; it cannot generate text")
    try:
        _apply_adapters(context, model)
    except ModelError:
        api.llama_free(context)
        raise
    return context


def context_bytes(model: Model, config: ContextConfig, *, context_tokens: int, sequences: int) -> int | None:
    """Estimated bytes of KV rows, windows, recurrent states and attention masks; None if they can't be known.

    A small context is made and measured, as a model does not tell what each of its layers keeps.
    """
    cells = _pad(context_tokens)
    ubatch = min(config.ubatch_tokens, config.batch_tokens)
    layout = _measure(model, config)
    if layout is None or layout.opaque:
        return None
    # The scratch id has a window and a state as the others have.
    total = (sequences + 1) * layout.recurrent_payload_bytes
    if layout.row_bytes:
        total += cells * (layout.row_bytes - layout.cell_bytes + _MASK_BYTES * ubatch)
    if layout.window_row_bytes:
        window_cells = _pad(min(cells, layout.window_tokens * (sequences + 1) + ubatch))
        total += window_cells * (layout.window_row_bytes - layout.cell_bytes + _MASK_BYTES * ubatch)
    return total


def with_spare_ids(model: Model, sequences: int) -> int:
    """``sequences`` and some more where that costs nothing: plain attention has no memory of its own for each."""
    if capabilities.memory_kind(model.handle) is not MemoryKind.PLAIN:
        return sequences
    most: int = api.llama_max_parallel_sequences() - 1
    return max(sequences, min(sequences + SPARE_SEQUENCES, most))


def output_limit(sequences: int) -> int:
    """Logits in one decode that memory is reserved for: at least one for each sequence."""
    return max(_MIN_OUTPUTS, sequences + 1)


def context_params(model: Model, config: ContextConfig, *, sequences: int) -> Any:
    _check(model, config, sequences=sequences)
    train_tokens = model.info.train_context_tokens
    params = api.llama_context_default_params()
    params.n_ctx = config.context_tokens or train_tokens
    if params.n_ctx > train_tokens:
        library.logger.warning(
            "--ctx %d is larger than the %d tokens the model was trained for", params.n_ctx, train_tokens
        )
    params.n_batch = config.batch_tokens
    params.n_ubatch = min(config.ubatch_tokens, config.batch_tokens)
    params.n_seq_max = sequences + 1
    params.n_rs_seq = 0
    # By default one for each token of a batch: at 512 that is 100 MB of logits for a vocabulary of
    # 50,000. And below n_seq_max, as with a small batch, llama.cpp aborts.
    params.n_outputs_max = output_limit(sequences)
    params.n_threads = config.threads or physical_cores()
    params.n_threads_batch = config.threads_batch or params.n_threads
    params.flash_attn_type = _FLASH_ATTENTION[config.flash_attention]
    params.type_k = library.KV_TYPE_IDS[config.type_k]
    params.type_v = library.KV_TYPE_IDS[config.type_v]
    params.offload_kqv = config.offload_kqv
    params.op_offload = config.op_offload
    # A partial seq_cp on a split cache aborts the process; exports are made of those.
    params.kv_unified = True
    params.swa_full = False
    params.rope_scaling_type = _ROPE_SCALING[config.rope_scaling]
    params.rope_freq_base = config.rope_freq_base
    params.rope_freq_scale = 1 / config.rope_scale if config.rope_scale else config.rope_freq_scale
    params.yarn_orig_ctx = config.yarn_orig_ctx
    params.yarn_ext_factor = config.yarn_ext_factor
    params.yarn_attn_factor = config.yarn_attn_factor
    params.yarn_beta_fast = config.yarn_beta_fast
    params.yarn_beta_slow = config.yarn_beta_slow
    params.no_perf = True
    return params


def _measure(model: Model, config: ContextConfig) -> MemoryLayout | None:
    """What a cell and a state of ``model`` take, from a context of a few cells; None when it cannot be made."""
    params = context_params(model, replace(config, context_tokens=_CELL_PADDING), sequences=1)
    params.n_batch = params.n_ubatch = _PROBE_BATCH_TOKENS
    context = api.llama_init_from_model(model.handle, params)
    if not context:
        return None
    try:
        batch = LlamaBatch(_PROBE_BATCH_TOKENS, outputs=1)
        batch.add(np.zeros(capabilities.PROBE_TOKENS, np.int32), start=0, sequence=0, output=False)
        if api.llama_decode(context, batch.native) != 0:
            return None
        return capabilities.probe(context, model=model.handle, scratch=1)[1]
    finally:
        api.llama_free(context)


def _pad(cells: int) -> int:
    return -(-cells // _CELL_PADDING) * _CELL_PADDING


def _check(model: Model, config: ContextConfig, *, sequences: int) -> None:
    """Refuse settings that llama.cpp would refuse, ignore, or abort on."""
    limit: int = api.llama_max_parallel_sequences()
    if not 1 <= sequences < limit:
        raise ConfigError(f"--parallel and --resident-idle need {sequences} sequences; 1 to {limit - 1} are possible")
    _at_least("--ctx", config.context_tokens, 0)
    if config.context_tokens > _MAX_CONTEXT_TOKENS:
        raise ConfigError(f"--ctx must be at most {_MAX_CONTEXT_TOKENS}, not {config.context_tokens}")
    _at_least("--batch-size", config.batch_tokens, 1)
    _at_least("--ubatch-size", config.ubatch_tokens, 1)
    _at_least("--threads", config.threads, 0)
    _at_least("--threads-batch", config.threads_batch, 0)
    _at_least("--rope-freq-base", config.rope_freq_base, 0)
    _at_least("--rope-freq-scale", config.rope_freq_scale, 0)
    _at_least("--rope-scale", config.rope_scale, 0)
    if config.rope_scale and config.rope_freq_scale:
        raise ConfigError("--rope-scale N is --rope-freq-scale 1/N; give one of them")
    _at_least("--yarn-orig-ctx", config.yarn_orig_ctx, 0)
    _one_of("--flash-attn", config.flash_attention, _FLASH_ATTENTION)
    _one_of("--rope-scaling", config.rope_scaling, _ROPE_SCALING)
    _one_of("--cache-type-k", config.type_k, library.KV_TYPE_IDS)
    _one_of("--cache-type-v", config.type_v, library.KV_TYPE_IDS)
    if config.type_v not in library.UNQUANTISED and config.flash_attention == "off":
        raise ConfigError(
            f"--cache-type-v {config.type_v} is quantised and needs flash attention; drop --flash-attn off"
        )
    if model.split_mode == "tensor" and config.flash_attention == "off":
        raise ConfigError("--split-mode tensor needs flash attention; drop --flash-attn off")
    lengths = _head_lengths(model)
    for flag, name, length in zip(
        ("--cache-type-k", "--cache-type-v"), (config.type_k, config.type_v), lengths, strict=True
    ):
        block = library.ggml_blck_size(library.KV_TYPE_IDS[name])
        if length % block:
            raise ConfigError(
                f"{flag} {name} packs {block} values, which does not divide the model's head size {length}"
            )


def _check_threads(config: ContextConfig, cpus: int) -> None:
    """Warn of more threads than CPUs, which slow each other down; refuse what can only be a mistake."""
    given = {"--threads": config.threads}
    if config.threads_batch != config.threads:
        given["--threads-batch"] = config.threads_batch
    for flag, threads in given.items():
        if threads > cpus * MOST_THREADS_PER_CPU:
            raise ConfigError(
                f"{flag} must be at most {cpus * MOST_THREADS_PER_CPU}, {MOST_THREADS_PER_CPU} for each of the "
                f"machine's {cpus} CPUs, not {threads}"
            )
        if threads > cpus:
            library.logger.warning("%s %d is more than the machine's %d CPUs; it will be slow", flag, threads, cpus)


def _at_least(flag: str, value: float, low: int) -> None:
    # Written so that NaN is refused too.
    if not value >= low:
        raise ConfigError(f"{flag} must be {low} or more, not {value}")


def _one_of(flag: str, value: str, choices: dict[str, int]) -> None:
    if value not in choices:
        raise ConfigError(f"{flag} must be one of {', '.join(choices)}, not '{value}'")


def _head_lengths(model: Model) -> tuple[int, int]:
    """Values per K head and per V head."""
    default = model.info.embedding_length // max(1, api.llama_model_n_head(model.handle))
    prefix = f"{model.info.architecture}.attention"
    metadata = model.info.metadata
    return (
        int(metadata.get(f"{prefix}.key_length", default)),
        int(metadata.get(f"{prefix}.value_length", default)),
    )


def _on_gpu(model: Model, config: ContextConfig) -> bool:
    """Whether the KV cache may lie outside host RAM, where only the backend knows what is free."""
    return config.offload_kqv and model.on_gpu


def _apply_adapters(context: Any, model: Model) -> None:
    if not model.adapters:
        return
    count = len(model.adapters)
    pointers = (api.llama_adapter_lora_p_ctypes * count)(*[adapter for adapter, _scale in model.adapters])
    scales = (ctypes.c_float * count)(*[scale for _adapter, scale in model.adapters])
    if api.llama_set_adapters_lora(context, pointers, count, scales) != 0:
        raise ModelError("llama.cpp refused to apply the LoRA adapters (--lora)")


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
