"""A small tokenizer in plain Python, for tests that need awkward control tokens or many runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anchorline.llama.interface import TokenArray

MERGES = ("\n\n", "th", "he", "the ", "ab", "bc", "abc", " a", "user\n", "ser")
FIRST_MERGE = 256
FIRST_CONTROL = 1000


class ToyTokenizer:
    """Bytes and a few merges, taken greedily, so that ids depend on where a text begins."""

    def __init__(
        self,
        control: Sequence[str],
        *,
        bos: str | None = None,
        eos: str | None = None,
        adds_bos: bool = False,
        strips: Mapping[str, tuple[bool, bool]] | None = None,
    ) -> None:
        self.strips: Mapping[str, tuple[bool, bool]] = strips or {}
        self._control = {text: FIRST_CONTROL + index for index, text in enumerate(control)}
        self._pieces = {token: text.encode() for text, token in self._control.items()}
        self._pieces |= {FIRST_MERGE + index: text.encode() for index, text in enumerate(MERGES)}
        self._pieces |= {byte: bytes([byte]) for byte in range(256)}
        self._merges = sorted(MERGES, key=len, reverse=True)
        self._bos = None if bos is None else self._control[bos]
        self._eos = None if eos is None else self._control[eos]
        self._adds_bos = adds_bos
        self.calls = 0

    @property
    def control_tokens(self) -> Mapping[str, int]:
        return self._control

    @property
    def vocab_size(self) -> int:
        return FIRST_CONTROL + len(self._control)

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
        self.calls += 1
        data, ids, position = text.encode(), list[int](), 0
        while position < len(data):
            merge = next((m for m in self._merges if data.startswith(m.encode(), position)), None)
            ids.append(data[position] if merge is None else FIRST_MERGE + MERGES.index(merge))
            position += 1 if merge is None else len(merge)
        return np.array(ids, dtype=np.int32)

    def piece(self, token: int) -> bytes:
        return b"" if token >= FIRST_CONTROL else self._pieces[token]

    def special_piece(self, token: int) -> bytes:
        return self._pieces[token]

    def detokenize(self, tokens: Sequence[int] | TokenArray) -> bytes:
        return b"".join(self._pieces[int(token)] for token in tokens)


def control_ids(tokens: TokenArray) -> list[int]:
    return [int(token) for token in tokens if token >= FIRST_CONTROL]
