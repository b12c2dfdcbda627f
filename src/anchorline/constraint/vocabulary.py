"""A model's vocabulary as llguidance wants it."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from llguidance import LLTokenizer, TokenizerWrapper

from anchorline.llama.interface import Tokenizer

_SPECIAL_MARK = b"\xff"
"""llguidance takes tokens that begin so, a byte that UTF-8 never has, for special ones."""
_SENTINEL = b"\x02"


class Vocabulary:
    """Makes the LLTokenizer of a model when first asked, since that reads every token. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, *, end_of_generation: Iterable[int]) -> None:
        self.tokenizer = tokenizer
        self._end_of_generation = sorted(end_of_generation)
        self._made: LLTokenizer | None = None
        self._lock = Lock()

    @property
    def can_end(self) -> bool:
        """Whether a token ends a reply; without one no constraint could be completed."""
        return bool(self._end_of_generation)

    def get(self) -> LLTokenizer:
        with self._lock:
            if self._made is None:
                source = TokenizerWrapper(_Source(self.tokenizer, self._end_of_generation))
                self._made = LLTokenizer(source, eos_token=self._end_of_generation, slices=LLTokenizer.json_slices())
            return self._made


class _Source:
    """The attributes and the call that ``TokenizerWrapper`` asks for."""

    def __init__(self, tokenizer: Tokenizer, end_of_generation: list[int]) -> None:
        special = {*tokenizer.control_tokens.values(), *end_of_generation}
        self._tokenizer = tokenizer
        self.eos_token_id = end_of_generation[0]
        self.bos_token_id = tokenizer.bos
        self.special_token_ids = sorted(special)
        self.tokens = [
            (_SPECIAL_MARK if token in special else b"") + tokenizer.special_piece(token)
            for token in range(tokenizer.vocab_size)
        ]

    def __call__(self, data: bytes) -> list[int]:
        """The ids that spell ``data``, which llguidance prefers where a grammar leaves no other text.

        A SentencePiece tokenizer puts a space before a text; behind a sentinel it does not.
        """
        ids = self._tokenize(data)
        if self._spell(ids) == data:
            return ids
        ids = self._tokenize(_SENTINEL + data)
        for index in range(len(ids)):
            if self._spell(ids[index:]) == data:
                return ids[index:]
        return []

    def _tokenize(self, data: bytes) -> list[int]:
        ids: list[int] = self._tokenizer.tokenize(data.decode("utf-8", "replace")).tolist()
        return ids

    def _spell(self, ids: list[int]) -> bytes:
        return b"".join([self._tokenizer.special_piece(token) for token in ids])
