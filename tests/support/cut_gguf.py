"""Cutting models for tests; the implementation is the benchmarks'."""

from anchorline.bench.cut_gguf import cut_layers

__all__ = ["cut_layers"]
