"""Which files of a directory are models that can be served; told by their names and the first bytes of each."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from anchorline.terminal import printable

_HEADER = struct.Struct("<4sIQ")
"""Magic, version and number of tensors."""
_MAGIC = b"GGUF"
_SHARD = re.compile(r".*-(?P<number>\d{5})-of-\d{5}")
_PROJECTOR = "mmproj"


@dataclass(frozen=True, slots=True)
class FoundModels:
    """What was found in a directory."""

    models: list[Path]
    """By name."""
    left_out: list[str]
    """For each file that is no model: what it is."""


def models_in(directory: Path) -> FoundModels:
    """Every ``*.gguf`` in ``directory`` itself. Of a split model the first file stands for all. Raises OSError."""
    found = FoundModels([], [])
    for path in sorted(file for file in directory.iterdir() if file.suffix == ".gguf"):
        shard = _SHARD.fullmatch(path.stem)
        if shard is not None and int(shard["number"]) > 1:
            continue  # llama.cpp finds it by the first one
        why = _why_not(path, is_shard=shard is not None)
        if why is None:
            found.models.append(path)
        else:
            found.left_out.append(f"{printable(str(path))} is left out: {why}")
    return found


def _why_not(path: Path, *, is_shard: bool) -> str | None:
    """Why ``path`` is no model that can be served; None when it may be one.

    The first shard of a model may hold its metadata alone.
    """
    if not path.stem.isprintable():
        return "its name has characters that cannot be shown"
    if _PROJECTOR in path.stem.lower():
        return "by its name it is the image projector of a model"
    try:
        if not path.is_file():
            return "it is no file"
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        return "it is not a GGUF file"
    _magic, _version, tensors = _HEADER.unpack(head)
    return None if tensors or is_shard else "it holds a vocabulary and no weights"
