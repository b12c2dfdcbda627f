"""Which model a GGUF file holds: a digest that takes a fraction of a second, of a file that takes minutes to read.

    [ metadata, tensor names, types and shapes ][ tensor ][ tensor ]…
      all of it                                   ^  ^  ^  ^  ^  ^     a little of each

Any other model, quantisation or fine-tune has other bytes in nearly every block of its weights. A weight that somebody
changes by hand, between the samples, goes unnoticed.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from anchorline.errors import ModelError
from anchorline.llama import library

SAMPLE_BYTES = 4096
"""Read at the beginning, in the middle and at the end of each tensor."""
_SPLIT = re.compile(r"(?P<prefix>.*)-\d{5}-of-(?P<count>\d{5})\.gguf")
_LONG_ROPE = "rope_factors_long"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """``digest`` is hexadecimal, of all files that a model is split into."""

    digest: str
    has_long_rope: bool
    """Its RoPE factors depend on how long the context is."""


def read_model_file(path: Path) -> ModelFile:
    """Digest a GGUF file that llama.cpp has loaded. Raises ModelError when it cannot be read any more."""
    digest = hashlib.sha256()
    long_rope = False
    try:
        for part in _parts(path):
            tensors = _tensors(part)
            long_rope = long_rope or any(_LONG_ROPE in tensor.name for tensor in tensors.spans)
            _add(part, tensors, digest)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return ModelFile(digest.hexdigest(), long_rope)


Stamp: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]


def stamp(path: Path) -> Stamp:
    """What is otherwise once one of the files that a model is split into was written or replaced.

    For each that can be looked at: device, inode, size and time of the last write in nanoseconds.
    """
    return tuple(_stamp(part) for part in _parts(path))


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of one tensor, from the beginning of the file."""

    name: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _Tensors:
    header_bytes: int
    spans: tuple[_Span, ...]


def _parts(path: Path) -> list[Path]:
    """All files of a split model, of which ``path`` is the first; else that file alone."""
    split = _SPLIT.fullmatch(path.name)
    if split is None:
        return [path]
    prefix, count = split["prefix"], int(split["count"])
    return [path.with_name(f"{prefix}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]


def _tensors(path: Path) -> _Tensors:
    file = library.gguf_init_from_file(str(path).encode(), library.GgufInitParams(no_alloc=True))
    if not file:
        raise ModelError(f"{path} cannot be read: it is not a GGUF file any more")
    try:
        data = library.gguf_get_data_offset(file)
        spans = tuple(
            _Span(
                name=library.gguf_get_tensor_name(file, index).decode("utf-8", "replace"),
                start=data + library.gguf_get_tensor_offset(file, index),
                size=library.gguf_get_tensor_size(file, index),
            )
            for index in range(library.gguf_get_n_tensors(file))
        )
        return _Tensors(data, spans)
    finally:
        library.gguf_free(file)


def _add(path: Path, tensors: _Tensors, digest: hashlib._Hash) -> None:
    """Take a file's size, its header and its samples into ``digest``."""
    with path.open("rb", buffering=0) as file:
        digest.update(os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
        digest.update(file.read(tensors.header_bytes))
        for span in tensors.spans:
            for offset in _samples(span):
                digest.update(os.pread(file.fileno(), min(SAMPLE_BYTES, span.size), offset))


def _samples(span: _Span) -> list[int]:
    """Where its samples begin; fewer than three in a small tensor."""
    last = span.start + max(0, span.size - SAMPLE_BYTES)
    return sorted({span.start, (span.start + last) // 2, last})
