"""Text ↔ token ids through the model's own vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from anchorline.errors import EngineFailure
from anchorline.llama.interface import TokenArray
from anchorline.llama.library import api

_SPECIAL = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN
_LEFT, _RIGHT = api.LLAMA_TOKEN_ATTR_LSTRIP, api.LLAMA_TOKEN_ATTR_RSTRIP
_PIECE_BYTES = 256
_INT_POINTER = ctypes.POINTER(ctypes.c_int32)


class LlamaTokenizer:
    """Implements ``interface.Tokenizer`` over a llama_vocab, which outlives it until ``close``.

    Plain text never becomes a control token; user-defined tokens in it are recognised, as
    llama.cpp does without parse_special. Pieces are read once and kept.
    """

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab
        self._vocab_size: int = api.llama_vocab_n_tokens(vocab)
        everything = range(self._vocab_size)
        attributes = [api.llama_vocab_get_attr(vocab, token) for token in everything]
        self._special = frozenset(token for token in everything if attributes[token] & _SPECIAL)
        self._control_tokens = MappingProxyType({self._text(token): token for token in sorted(self._special)})
        self._strips = MappingProxyType(
            {
                self._text(token): (bool(attributes[token] & _LEFT), bool(attributes[token] & _RIGHT))
                for token in everything
                if attributes[token] & (_LEFT | _RIGHT)
            }
        )
        self.end_of_generation = frozenset(token for token in everything if api.llama_vocab_is_eog(vocab, token))
        """Ids that end a reply."""
        self._pieces: list[bytes | None] = [None] * self._vocab_size
        self._bos = _present(api.llama_vocab_bos(vocab))
        self._eos = _present(api.llama_vocab_eos(vocab))
        self._adds_bos = bool(api.llama_vocab_get_add_bos(vocab)) and self._bos is not None
        self._substitutes = self._hash_substitutes()

    @property
    def control_tokens(self) -> Mapping[str, int]:
        return self._control_tokens

    @property
    def strips(self) -> Mapping[str, tuple[bool, bool]]:
        return self._strips

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def bos(self) -> int | None:
        return self._bos

    @property
    def eos(self) -> int | None:
        return self._eos

    @property
    def adds_bos(self) -> bool:
        return self._adds_bos

    def tokenize(self, text: str) -> TokenArray:
        vocab = self._open_vocab()
        # A lone surrogate cannot be UTF-8; it becomes '?', so that no client text can fail here.
        data = text.encode("utf-8", "replace")
        ids = np.empty(len(data) + 8, np.int32)
        count = api.llama_tokenize(vocab, data, len(data), ids.ctypes.data_as(_INT_POINTER), ids.size, False, False)
        if count < 0:
            ids = np.empty(-count, np.int32)
            count = api.llama_tokenize(vocab, data, len(data), ids.ctypes.data_as(_INT_POINTER), ids.size, False, False)
        if count < 0:
            raise EngineFailure(f"llama.cpp could not tokenise a text of {len(data)} bytes")
        # A copy of the right size: the array may live for as long as a conversation.
        ids = ids[:count].copy()
        return ids if self._substitutes is None else self._substitutes[ids]

    def piece(self, token: int) -> bytes:
        return b"" if token in self._special else self.special_piece(token)

    def special_piece(self, token: int) -> bytes:
        # A negative index would silently read from the end of the list.
        if not 0 <= token < self._vocab_size:
            raise IndexError(f"token {token} lies outside the vocabulary of {self._vocab_size}")
        piece = self._pieces[token]
        if piece is None:
            # Two threads may both read it; they store the same bytes.
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def detokenize(self, tokens: Sequence[int] | TokenArray) -> bytes:
        """Bytes of ``tokens`` one after the other, control tokens spelled out."""
        return b"".join([self.special_piece(int(token)) for token in tokens])

    def close(self) -> None:
        """Forget the vocabulary, which is about to be freed. Idempotent."""
        self._vocab = None

    def _open_vocab(self) -> Any:
        if self._vocab is None:
            raise EngineFailure("the model is closed")
        return self._vocab

    def _read_piece(self, token: int) -> bytes:
        vocab = self._open_vocab()
        if token in self._special:
            return self._text(token).encode()
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        count = api.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, True)
        if count < 0:
            buffer = ctypes.create_string_buffer(-count)
            count = api.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[: max(count, 0)]

    def _text(self, token: int) -> str:
        text: bytes = api.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace")

    def _hash_substitutes(self) -> TokenArray | None:
        """For the ``test`` vocabulary only: a table that leads control ids to plain ones.

        That tokenizer hashes text over all ids, control tokens included.
        """
        if api.llama_vocab_type(self._vocab) != api.LLAMA_VOCAB_TYPE_TEST:
            return None
        plain = np.array([token for token in range(self._vocab_size) if token not in self._special], np.int32)
        table = np.arange(self._vocab_size, dtype=np.int32)
        for index, token in enumerate(sorted(self._special)):
            table[token] = plain[index]
        return table


def _present(token: int) -> int | None:
    return token if token >= 0 else None
