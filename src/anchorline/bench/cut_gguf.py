"""Cut a model to its first layers: same tokenizer and template, a fraction of the compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorline.errors import AnchorlineError, ConfigError


def cut_layers(source: Path, target: Path, *, layers: int = 2, context_tokens: int | None = None) -> None:
    """Write to ``target`` the GGUF ``source`` with only its first ``layers`` layers.

    ``context_tokens`` replaces the training context. Everything else is copied as it is, weights
    byte for byte. Raises AnchorlineError when the gguf package is missing, and ConfigError when ``source``
    has fewer layers.
    """
    try:
        import gguf
    except ImportError:
        raise AnchorlineError("cutting a model needs the gguf package; get it with 'pip install gguf'") from None
    reader = gguf.GGUFReader(source)
    architecture: str = reader.fields["general.architecture"].contents()
    count_key = f"{architecture}.block_count"
    total: int = reader.fields[count_key].contents()
    if not 1 <= layers <= total:
        raise ConfigError(f"{source.name} has {total} layers; {layers} cannot be kept")
    replaced = {count_key: layers}
    if context_tokens is not None:
        replaced[f"{architecture}.context_length"] = context_tokens

    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *inner = field.types
        value = replaced.get(name, field.contents())
        if kind is gguf.GGUFValueType.ARRAY and not value:
            continue  # The writer refuses empty arrays; llama.cpp reads an absent one the same.
        if inner and name.startswith(f"{architecture}.") and len(value) == total:
            value = value[:layers]
        writer.add_key_value(name, value, kind, inner[-1] if inner else None)
    kept = [tensor for tensor in reader.tensors if _layer(tensor.name) < layers]
    for tensor in kept:
        writer.add_tensor_info(
            tensor.name, tensor.data.shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type
        )
    _write(writer, kept)


def _write(writer: Any, tensors: list[Any]) -> None:
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(tensor.data)
    finally:
        writer.close()


def _layer(name: str) -> int:
    """The layer a tensor belongs to; -1 for what lies outside all layers."""
    head, *rest = name.split(".")
    return int(rest[0]) if head == "blk" else -1
