"""Small vocabularies in files of their own, and what llama.cpp itself makes of a text."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from anchorline.llama.interface import TokenArray
from anchorline.llama.library import api

_INT_POINTER = ctypes.POINTER(ctypes.c_int32)
Word = tuple[str, float, int]


def spm_words(control: Sequence[str] = ()) -> list[Word]:
    """SentencePiece words with byte fallback and a user-defined one; ``control`` ones come last."""
    types = gguf.TokenType
    pieces = ["▁", "a", "b", "ab", "▁ab", "▁a"]
    return [
        ("<unk>", 0.0, types.UNKNOWN),
        ("<s>", 0.0, types.CONTROL),
        ("</s>", 0.0, types.CONTROL),
        *((f"<0x{byte:02X}>", 0.0, types.BYTE) for byte in range(256)),
        ("[TOOL]", 0.0, types.USER_DEFINED),
        *((piece, -float(rank), types.NORMAL) for rank, piece in enumerate(pieces)),
        *((text, 0.0, types.CONTROL) for text in control),
    ]


def bpe_words(control: Sequence[str] = ()) -> list[Word]:
    """One word for each byte, spelled as GPT-2 spells it, a merge of two, and ``control`` ones."""
    types = gguf.TokenType
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = [*map(chr, printable), *(chr(256 + index) for index in range(len(others)))]
    return [
        *((word, 0.0, types.NORMAL) for word in [*spelled, "ab"]),
        *((text, 0.0, types.CONTROL) for text in control),
    ]


@contextmanager
def vocabulary(
    folder: Path, words: Sequence[Word], *, model: str, name: str = "small", pre: str | None = None
) -> Iterator[Any]:
    """A llama_vocab over ``words``; ``name`` and ``pre`` decide which tokens strip white space."""
    path = folder / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_tokenizer_model(model)
    writer.add_token_list([word for word, _score, _type in words])
    writer.add_token_scores([score for _word, score, _type in words])
    writer.add_token_types([int(kind) for _word, _score, kind in words])
    if pre is not None:
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(["a b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    params = api.llama_model_default_params()
    params.vocab_only = True
    handle = api.llama_model_load_from_file(str(path).encode(), params)
    assert handle
    try:
        yield api.llama_model_get_vocab(handle)
    finally:
        api.llama_model_free(handle)


def llama_ids(vocab: Any, text: str) -> list[int]:
    """What llama.cpp makes of a text in which control tokens are spelled out, without adding any."""
    data = text.encode()
    ids: TokenArray = np.empty(len(data) + 16, np.int32)
    count = api.llama_tokenize(vocab, data, len(data), ids.ctypes.data_as(_INT_POINTER), ids.size, False, True)
    assert count >= 0
    return [int(token) for token in ids[:count]]
