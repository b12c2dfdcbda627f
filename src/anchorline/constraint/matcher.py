"""A compiled grammar, and the masks that follow it token by token."""

from __future__ import annotations

from threading import Lock

import numpy as np
from llguidance import LLMatcher

from anchorline.errors import ConstraintFailure
from anchorline.llama.interface import TokenArray

_BITS = 32


class CompiledConstraint:
    """Implements ``TokenConstraint`` over a matcher that is only ever copied."""

    def __init__(self, matcher: LLMatcher, *, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._lock = Lock()

    def start(self) -> GrammarMask:
        with self._lock:
            return GrammarMask(self._matcher.deep_copy(), vocab_size=self._vocab_size)


class GrammarMask:
    """Implements ``TokenMask``. A matcher that has failed stays failed, so no token goes by unchecked."""

    __slots__ = ("_bitmask", "_bits", "_ids", "_matcher", "_spread", "_vocab_size")

    def __init__(self, matcher: LLMatcher, *, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._bitmask = np.zeros(-(-vocab_size // _BITS), np.uint32)
        self._bits = self._bitmask.view(np.uint8)
        self._spread = b""
        self._ids: TokenArray = np.empty(0, np.int32)
        """The ids that the bits of ``_spread`` stand for: inside a string they stay the same for many tokens."""

    def allowed(self) -> TokenArray:
        bitmask = self._bitmask
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        if self._matcher.is_error():
            raise ConstraintFailure(f"the grammar cannot be followed: {self._matcher.get_error()}")
        bits = bitmask.tobytes()
        if bits != self._spread:
            flags = np.unpackbits(self._bits, count=self._vocab_size, bitorder="little")
            self._ids = np.flatnonzero(flags.view(np.bool_)).astype(np.int32)
            self._spread = bits
        if self._ids.size == 0:
            raise ConstraintFailure("no token of the vocabulary can go on with the grammar")
        return self._ids

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise ConstraintFailure(f"token {token} does not follow the grammar: {self._matcher.get_error()}")
