"""Control tokens as text: where a rendered prompt holds them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from anchorline.llama.interface import Tokenizer

_WHITE_SPACE = " \t\n\v\f\r"
"""isspace() of the C locale, which is what llama.cpp strips."""
_NEITHER = (False, False)


class ControlTexts:
    """The texts of all control tokens of a vocabulary, ready to be looked for.

    A text of a single character cannot be broken by a guard, so such tokens stay text.
    """

    def __init__(self, ids: Mapping[str, int], strips: Mapping[str, tuple[bool, bool]]) -> None:
        self.ids = {text: token for text, token in ids.items() if len(text) > 1}
        self._strips = {text: sides for text, sides in strips.items() if text in self.ids}
        self.longest = max(map(len, self.ids), default=0)
        self.pattern = re.compile(_alternatives(self.ids) if self.ids else r"(?!)", re.DOTALL)
        """Matches at the leftmost control token, and of several that start there the longest."""
        self.beginnings = frozenset(text[:end] for text in self.ids for end in range(1, len(text)))
        self.endings = frozenset(text[start:] for text in self.ids for start in range(1, len(text)))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ControlTexts:
        """Control tokens of ``tokenizer``, with BOS and EOS even where the file does not mark them so."""
        ids = dict(tokenizer.control_tokens)
        for token in (tokenizer.bos, tokenizer.eos):
            if token is not None:
                ids.setdefault(special_text(tokenizer, token), token)
        ids.pop("", None)
        return cls(ids, tokenizer.strips)

    def strips_left(self, text: str) -> bool:
        """Whether white space left of this control token is dropped."""
        return self._strips.get(text, _NEITHER)[0]

    def between(self, plain: str, *, before: str, after: str) -> str:
        """What is left of the text between two control tokens, which may drop white space; "" for no token."""
        if self._strips.get(before, _NEITHER)[1]:
            plain = plain.lstrip(_WHITE_SPACE)
        return plain.rstrip(_WHITE_SPACE) if self.strips_left(after) else plain


def special_text(tokenizer: Tokenizer, token: int | None) -> str:
    """The text of a special token as templates write it; "" for None."""
    return "" if token is None else tokenizer.special_piece(token).decode("utf-8", "replace")


def _alternatives(texts: Iterable[str]) -> str:
    """A pattern for any of ``texts``, longest first, that shares common beginnings.

    Hundreds of reserved tokens differ only at their ends; a plain alternation would try each.
    """
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[:1], []).append(text[1:])
    optional = by_first.pop("", None) is not None
    branches = []
    for first, rests in by_first.items():
        if len(rests) == 1:
            branches.append(re.escape(first + rests[0]))
        else:
            branches.append(re.escape(first) + _alternatives(rests))
    if len(branches) == 1 and not optional:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + ("?" if optional else "")
