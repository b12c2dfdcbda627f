"""What a model takes in memory: measured by a load that allocates nothing, from what llama.cpp says of its buffers.

A file is read as far as its metadata: with ``no_alloc`` llama.cpp lays out weights, caches and graphs
and gives them no memory. Only its log tells their sizes, in MiB with two decimals; caches of very
many cells and sequences are laid out once more, so that what one of each takes comes out to the byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anchorline.config import ContextConfig
from anchorline.errors import ModelError
from anchorline.llama import library
from anchorline.llama.blobs import (
    CELL_SIZES,
    KV_HEADER_BYTES,
    RECURRENT_HEADER_BYTES,
    MemoryLayout,
)
from anchorline.llama.capabilities import memory_kind
from anchorline.llama.context import context_params
from anchorline.llama.interface import MemoryKind
from anchorline.llama.library import api
from anchorline.llama.model import Model

_MIB = 1 << 20
_PROBE_CELLS = 131072
_PROBE_SEQUENCES = 255
_PROBE_BATCH = 32
_BODY_BYTES = 8
"""Of a body's flag and its number of layers."""
_TENSOR_BYTES = 12
"""Of the type and the row size before a layer's K, V, R or S."""

_KV_CACHE = re.compile(
    r"llama_kv_cache: size = +[\d.]+ MiB \( *(?P<cells>\d+) cells, +(?P<layers>\d+) layers.*"
    r"K \(\w+\): +(?P<k>[\d.]+) MiB, V \(\w+\): +(?P<v>[\d.]+) MiB"
)
_RECURRENT = re.compile(
    r"llama_memory_recurrent: size = +(?P<size>[\d.]+) MiB \( *(?P<cells>\d+) cells, +(?P<layers>\d+)"
)
_WINDOW = re.compile(r"creating +SWA KV cache")
_COMPUTE = re.compile(r"(?:sched_reserve|llama_context): +\S+ +(?:compute|output) buffer size = +(?P<size>[\d.]+) MiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one model under one configuration."""

    kind: MemoryKind
    layers: int
    context_tokens: int
    weights_bytes: int
    kv_bytes: int
    """Live rows, windows and recurrent states of all sequences."""
    compute_bytes: int
    """Buffers of the largest graph, and of the logits."""
    row_bytes: int
    """Of one saved token; 0 without rows."""
    state_bytes: int
    """Of one saved state, at most; 0 with plain attention."""

    @property
    def live_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


def measure(model: Model, config: ContextConfig, *, sequences: int) -> Footprint:
    """The footprint of ``model``, loaded with or without its weights, in a context for ``sequences`` ids.

    Of a model with its weights the memory is really taken, for a moment. Raises ConfigError and
    ModelError as ``create_context`` does.
    """
    params = context_params(model, config, sequences=sequences)
    caches, compute_bytes = _laid_out(model, params)
    layout = _layout(model, config)
    kind = memory_kind(model.handle)
    return Footprint(
        kind=kind,
        layers=api.llama_model_n_layer(model.handle),
        context_tokens=params.n_ctx,
        weights_bytes=model.info.size_bytes,
        kv_bytes=sum(cache.nbytes for cache in caches),
        compute_bytes=compute_bytes,
        row_bytes=layout.row_bytes,
        state_bytes=0 if kind is MemoryKind.PLAIN else layout.state_bytes(layout.window_tokens),
    )


@dataclass(frozen=True, slots=True)
class _Cache:
    """One cache as llama.cpp describes it."""

    what: str
    """``rows``, ``window`` or ``states``."""
    nbytes: int
    cells: int
    layers: int

    @property
    def cell_bytes(self) -> int:
        return round(self.nbytes / self.cells)


def _laid_out(model: Model, params: object) -> tuple[list[_Cache], int]:
    """The caches of a context under ``params``, and the bytes of its other buffers."""
    with library.log.listen() as complaints, library.log.sizes() as lines:
        context = api.llama_init_from_model(model.handle, params)
    if not context:
        why = library.reason(complaints, otherwise="llama.cpp gave no reason")
        raise ModelError(f"the context (--ctx) cannot be laid out: {why}")
    api.llama_free(context)
    compute = (found for line in lines if (found := _COMPUTE.match(line)))
    return _caches(lines), sum(_bytes(found["size"]) for found in compute)


def _caches(lines: Sequence[str]) -> list[_Cache]:
    caches = []
    what = "rows"
    for line in lines:
        if _WINDOW.search(line):
            what = "window"
        elif found := _KV_CACHE.match(line):
            nbytes = _bytes(found["k"]) + _bytes(found["v"])
            caches.append(_Cache(what, nbytes, int(found["cells"]), int(found["layers"])))
        elif found := _RECURRENT.match(line):
            caches.append(_Cache("states", _bytes(found["size"]), int(found["cells"]), int(found["layers"])))
    return caches


def _layout(model: Model, config: ContextConfig) -> MemoryLayout:
    """What exports look like, from caches so large that a MiB with two decimals is exact for one cell."""
    params = context_params(model, replace(config, context_tokens=_PROBE_CELLS // 512), sequences=_PROBE_SEQUENCES)
    params.n_ctx = _PROBE_CELLS
    params.n_batch = params.n_ubatch = _PROBE_BATCH
    params.swa_full = True
    caches = {cache.what: cache for cache in _laid_out(model, params)[0]}
    rows, window, states = (caches.get(what) for what in ("rows", "window", "states"))
    cell_bytes = _cell_bytes(model)
    return MemoryLayout(
        cell_bytes=cell_bytes,
        row_bytes=cell_bytes + rows.cell_bytes if rows else 0,
        window_tokens=api.llama_model_n_swa(model.handle) if window else 0,
        window_row_bytes=cell_bytes + window.cell_bytes if window else 0,
        window_fixed_bytes=KV_HEADER_BYTES + _BODY_BYTES + 2 * _TENSOR_BYTES * window.layers if window else 0,
        recurrent_bytes=_recurrent_bytes(states, attention=[rows, window]) if states else 0,
    )


def _recurrent_bytes(states: _Cache, *, attention: Sequence[_Cache | None]) -> int:
    """Of one state's body. llama.cpp counts all layers of a hybrid; those with attention mostly have no state."""
    others = sum(cache.layers for cache in attention if cache)
    layers = states.layers - others if others < states.layers else states.layers
    return RECURRENT_HEADER_BYTES + _BODY_BYTES + 2 * _TENSOR_BYTES * layers + states.cell_bytes


def _cell_bytes(model: Model) -> int:
    """Of a cell's position and ids, and what M-RoPE keeps beside them."""
    rope = api.llama_model_rope_type(model.handle)
    return max(CELL_SIZES) if rope in (api.LLAMA_ROPE_TYPE_MROPE, api.LLAMA_ROPE_TYPE_IMROPE) else min(CELL_SIZES)


def _bytes(mib: str) -> int:
    return round(float(mib) * _MIB)
