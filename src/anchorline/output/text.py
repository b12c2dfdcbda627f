"""Token bytes to text, only ever whole characters."""

from __future__ import annotations

import codecs

_new_decoder = codecs.getincrementaldecoder("utf-8")


class TextDecoder:
    """Decodes UTF-8 that arrives in pieces; a character is given out once all its bytes are there.

    Invalid bytes become U+FFFD exactly as ``bytes.decode("utf-8", "replace")`` of the whole does.
    """

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = _new_decoder("replace")

    def feed(self, data: bytes) -> str:
        """The characters completed by ``data``; may be empty."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End of input: what an unfinished character leaves (U+FFFD), or nothing."""
        return self._decoder.decode(b"", True)

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes of an unfinished character are waiting."""
        return bool(self._decoder.getstate()[0])
