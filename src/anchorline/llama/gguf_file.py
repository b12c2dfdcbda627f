"""What is checked of a GGUF file before llama.cpp loads it: clearer errors, and no abort."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorline.errors import ModelError
from anchorline.llama import library

_MAGIC = b"GGUF"
_TOKENS_KEY = b"tokenizer.ggml.tokens"


def check_gguf(path: Path, *, what: str) -> None:
    """Raise ModelError, naming ``path``, unless it is a GGUF file that llama.cpp can be given.

    llama.cpp reports most damage itself. Two equal words in the vocabulary make it abort the
    process, so they are looked for here.
    """
    _check_magic(path, what=what)
    with library.log.listen() as lines:
        file = library.gguf_init_from_file(str(path).encode(), library.GgufInitParams(no_alloc=True))
    if not file:
        why = library.reason(lines, otherwise="its header is damaged")
        raise ModelError(f"{path} cannot be loaded: {why}")
    try:
        if _has_repeated_word(file):
            raise ModelError(f"{path} cannot be loaded: its vocabulary holds the same word twice")
    finally:
        library.gguf_free(file)


def number_in_file(path: Path, key: str) -> int | None:
    """A u32 of a file that ``check_gguf`` let pass; None when it holds none of that name."""
    file = library.gguf_init_from_file(str(path).encode(), library.GgufInitParams(no_alloc=True))
    try:
        index = library.gguf_find_key(file, key.encode("utf-8", "surrogateescape"))
        if index < 0 or library.gguf_get_kv_type(file, index) != library.GGUF_TYPE_UINT32:
            return None
        number: int = library.gguf_get_val_u32(file, index)
        return number
    finally:
        library.gguf_free(file)


def _check_magic(path: Path, *, what: str) -> None:
    try:
        if path.is_dir():
            raise ModelError(f"{path} is a directory; name a GGUF {what} file in it")
        if path.exists() and not path.is_file():
            # Opening a FIFO would wait for a writer.
            raise ModelError(f"{path} is a pipe or a device; name a GGUF {what} file")
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise ModelError(f"there is no {what} file {path}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"the {what} file {path} cannot be read: {error}") from None
    if not magic:
        raise ModelError(f"the {what} file {path} is empty")
    if magic != _MAGIC:
        raise ModelError(f"{path} is not a GGUF file (it starts with {magic!r})")


def _has_repeated_word(file: Any) -> bool:
    key = library.gguf_find_key(file, _TOKENS_KEY)
    if key < 0 or library.gguf_get_kv_type(file, key) != library.GGUF_TYPE_ARRAY:
        return False
    if library.gguf_get_arr_type(file, key) != library.GGUF_TYPE_STRING:
        return False
    count: int = library.gguf_get_arr_n(file, key)
    # Empty words may repeat: llama.cpp gives each a name of its own.
    words = [word for index in range(count) if (word := library.gguf_get_arr_str(file, key, index))]
    return len(set(words)) < len(words)
