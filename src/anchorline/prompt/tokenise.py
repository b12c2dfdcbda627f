"""Text to token ids, tokenising only what was not tokenised before.

    earlier   <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n
    now       <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello<|im_end|>\\n…
                                             ^ taken over up to here, ^ first difference

The text between two control tokens is tokenised on its own, without the white space that either of
them drops, so ids up to a control token do not depend on what follows it. They are taken over up to
the last control token that ends at least one longest control text before the first difference:
nearer ones might be read differently.

Where a cut lies inside such a stretch, the ids of the text up to it are needed as well: only the last of its tokens
are read again, and all of it where those do not fall in with the whole.

What one tenant's texts took is not taken over by another's: how long a text takes would tell what others sent.

A *placeholder* in the text stands for given ids. It is a control token of many ids that no text of a request
can spell, since a secret is part of it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sys
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from anchorline.llama.interface import TokenArray, Tokenizer
from anchorline.prompt.control import ControlTexts
from anchorline.prompt.memo import ByteMemo

LOOK_BACK_TOKENS = 64
"""So many tokens are read again to see where the beginning of a text leaves the whole."""
SURE_TOKENS = 32
"""So many of them have to be the same, or all are read again."""

_Key = tuple[str, str, str]
"""Tenant, guard and text."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Character offset in a rendered text where its first ``messages`` messages end."""

    character: int
    messages: int


@dataclass(slots=True)
class TokenizedText:
    """A rendered text and its ids; immutable but for ``marks``, which are filled in once.

    ``starts``/``ends`` are the character offsets of its control tokens and placeholders, ``befores`` and
    ``counts`` the number of ids up to the start and the end of each. BOS is not among the ids unless the text
    itself begins with it.
    """

    text: str
    guard: str
    tokens: TokenArray
    starts: list[int]
    ends: list[int]
    befores: list[int]
    counts: list[int]
    tenant: str
    marks: tuple[Mark, ...] = ()

    @property
    def key(self) -> _Key:
        return (self.tenant, self.guard, self.text)

    @property
    def held_bytes(self) -> int:
        return sys.getsizeof(self.text) + int(self.tokens.nbytes) + 4 * 40 * len(self.ends) + 500


@dataclass(slots=True)
class _Stretch:
    """A text without control tokens and its ids; ``spelling`` is filled in once it is asked for."""

    text: str
    tokens: TokenArray
    spelling: _Spelling | None = None

    @property
    def held_bytes(self) -> int:
        return sys.getsizeof(self.text) + 3 * int(self.tokens.nbytes)


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Where each id of a stretch ends, in bytes of what all of them spell."""

    front: bytes
    """What they spell before the text, as where a vocabulary begins every text with a space."""
    ends: npt.NDArray[np.int64]
    """None at all where they do not spell the text."""

    @classmethod
    def of(cls, stretch: _Stretch, tokenizer: Tokenizer) -> _Spelling:
        pieces = [tokenizer.special_piece(token) for token in stretch.tokens.tolist()]
        data, spelt = stretch.text.encode("utf-8", "replace"), b"".join(pieces)
        if not spelt.endswith(data):
            return cls(b"", np.empty(0, dtype=np.int64))
        return cls(spelt[: len(spelt) - len(data)], np.cumsum([len(piece) for piece in pieces]))

    def tail(self, part: str) -> tuple[int, str]:
        """The last tokens of ``part``, with which the stretch begins: how many ids stand before, and their text.

        Its ids by itself are those that stand in ``part`` if anything but its end decides about them.
        """
        data, lead = part.encode("utf-8", "replace"), len(self.front)
        index = int(np.searchsorted(self.ends, lead + len(data), side="right")) - LOOK_BACK_TOKENS
        while index > 0:
            start = int(self.ends[index - 1])
            if data[start - lead : start] == self.front and data[start : start + 1] and data[start] & 0xC0 != 0x80:
                return index, data[start:].decode()
            index -= 1
        return 0, part


class PromptTokenizer:
    """Tokenises rendered texts; bounded in bytes; thread-safe."""

    def __init__(self, tokenizer: Tokenizer, *, memo_bytes: int = 64 << 20) -> None:
        self.control = ControlTexts.of(tokenizer)
        self._tokenizer = tokenizer
        self._memo_bytes = memo_bytes
        self._used_bytes = 0
        self._entries: OrderedDict[_Key, TokenizedText] = OrderedDict()
        self._sorted: list[_Key] = []
        self._lock = Lock()
        self._stretches: ByteMemo[tuple[str, str], _Stretch] = ByteMemo(memo_bytes)
        self.tokenized_characters = 0
        """Characters given to the model's tokenizer so far: what the memo could not answer."""
        self._secret = f"\0{secrets.token_hex(16)}-"
        self._pattern = re.compile(f"{self._secret}[0-9a-f]{{32}}\0|{self.control.pattern.pattern}", re.DOTALL)

    def placeholder(self, tokens: TokenArray) -> str:
        """The text that stands for ``tokens``; the same for the same ids."""
        return f"{self._secret}{hashlib.sha256(tokens.tobytes()).hexdigest()[:32]}\0"

    def tokenize(
        self,
        text: str,
        guard: str = "",
        *,
        placeholders: Mapping[str, TokenArray] = MappingProxyType({}),
        tenant: str = "",
    ) -> TokenizedText:
        """Ids of ``text``: control-token texts become control tokens, then ``guard`` is dropped.

        ``placeholders`` gives the ids of each one in the text. Marks of the tenant's text that it was continued
        from are taken over as far as both agree.
        """
        key = (tenant, guard, text)
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                self._entries.move_to_end(key)
                return known
        base, shared = self._closest(key)
        made = self._extend(base, shared, key, placeholders)
        self._remember(made, base, shared)
        return made

    def position(self, tokenized: TokenizedText, character: int) -> int:
        """Token position of a character offset, mapped down to where the ids agree.

        The ids of text[:character] and of the whole text agree up to the position that is returned, as far as
        LOOK_BACK_TOKENS show it.
        """
        index = bisect_right(tokenized.ends, character) - 1
        start, first = (tokenized.ends[index], tokenized.counts[index]) if index >= 0 else (0, 0)
        before = tokenized.text[tokenized.starts[index] : start] if index >= 0 else ""
        if index + 1 < len(tokenized.starts):
            end = tokenized.starts[index + 1]
            character = min(character, end)
            # Where that token drops white space, the ids before it may differ from those of the beginning.
            if character == end and not self.control.strips_left(tokenized.text[end : tokenized.ends[index + 1]]):
                return tokenized.befores[index + 1]
            after = tokenized.text[end : tokenized.ends[index + 1]]
        else:
            end, after = len(tokenized.text), ""
        part = self._plain(tokenized.text[start:character], tokenized.guard, before=before)
        whole = self._plain(tokenized.text[start:end], tokenized.guard, before=before, after=after)
        return first + self._agreed(part, whole, tokenized.tenant)

    def _agreed(self, part: str, whole: str, tenant: str) -> int:
        """How many ids of ``whole`` are those of ``part``, with which it begins."""
        stretch = self._stretch(whole, tenant)
        if len(part) >= LOOK_BACK_TOKENS:
            if stretch.spelling is None:
                stretch.spelling = _Spelling.of(stretch, self._tokenizer)
            index, tail = stretch.spelling.tail(part)
            agreed = common_tokens(self._stretch(tail, tenant).tokens, stretch.tokens[index:])
            if agreed >= SURE_TOKENS:
                return index + agreed
        return common_tokens(self._stretch(part, tenant).tokens, stretch.tokens)

    def _closest(self, key: _Key) -> tuple[TokenizedText | None, int]:
        """The remembered text with the longest common beginning, and the length of that.

        In sorted order it is one of the neighbours.
        """
        *belongs, text = key
        with self._lock:
            place = bisect_left(self._sorted, key)
            near = [self._entries[known] for known in self._sorted[max(0, place - 1) : place + 1]]
        best, shared = None, 0
        for entry in near:
            length = common_characters(entry.text, text) if belongs == [entry.tenant, entry.guard] else 0
            if length > shared:
                best, shared = entry, length
        if best is not None:
            with self._lock:
                if best.key in self._entries:
                    self._entries.move_to_end(best.key)
        return best, shared

    def _extend(
        self,
        base: TokenizedText | None,
        shared: int,
        key: _Key,
        placeholders: Mapping[str, TokenArray],
    ) -> TokenizedText:
        tenant, guard, text = key
        kept = bisect_right(base.ends, shared - self.control.longest) if base is not None else 0
        starts, ends, befores, counts = (
            ([], [], [], [])
            if base is None
            else (base.starts[:kept], base.ends[:kept], base.befores[:kept], base.counts[:kept])
        )
        end = ends[-1] if kept else 0
        count = counts[-1] if kept else 0
        before = text[starts[-1] : end] if kept else ""
        parts = [base.tokens[:count]] if base is not None else []
        for match in self._pattern.finditer(text, end):
            plain = self._plain(text[end : match.start()], guard, before=before, after=match.group())
            tokens = self._stretch(plain, tenant).tokens
            end, before = match.end(), match.group()
            ids = placeholders.get(before)
            if ids is None:
                ids = np.array([self.control.ids[before]], dtype=np.int32)
            parts += tokens, ids
            starts.append(match.start())
            ends.append(end)
            befores.append(count + tokens.size)
            count += tokens.size + ids.size
            counts.append(count)
        parts.append(self._stretch(self._plain(text[end:], guard, before=before), tenant).tokens)
        tokens = np.concatenate(parts).astype(np.int32, copy=False)
        tokens.flags.writeable = False
        marks = tuple(mark for mark in base.marks if mark.character <= shared) if base is not None else ()
        return TokenizedText(text, guard, tokens, starts, ends, befores, counts, tenant, marks)

    def _plain(self, text: str, guard: str, *, before: str, after: str = "") -> str:
        """A stretch without control tokens that lies between two of them as it is read; "" where there is none."""
        if guard:
            text = text.replace(guard, "")
        return self.control.between(text, before=before, after=after)

    def _stretch(self, text: str, tenant: str) -> _Stretch:
        if not text:
            return _NOTHING
        known = self._stretches.get((tenant, text))
        if known is None:
            known = _Stretch(text, self._tokenizer.tokenize(text))
            self._stretches.put((tenant, text), known, known.held_bytes)
            with self._lock:
                self.tokenized_characters += len(text)
        return known

    def _remember(self, made: TokenizedText, base: TokenizedText | None, shared: int) -> None:
        if made.held_bytes > self._memo_bytes // 4:
            return
        with self._lock:
            if base is not None and base.ends and base.ends[-1] <= shared - self.control.longest:
                self._forget(base.key)  # whatever it could give, the new text gives as well
            if made.key not in self._entries:
                self._entries[made.key] = made
                insort(self._sorted, made.key)
                self._used_bytes += made.held_bytes
            while self._used_bytes > self._memo_bytes:
                self._forget(next(iter(self._entries)))

    def _forget(self, key: _Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self._sorted[bisect_left(self._sorted, key)]
            self._used_bytes -= entry.held_bytes


_NOTHING = _Stretch("", np.empty(0, dtype=np.int32))


def common_characters(a: str, b: str) -> int:
    """Length of the longest common beginning, found by comparing slices of growing, then shrinking size."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    position, step = 0, 4096
    while a[position : position + step] == b[position : position + step]:
        position += step
        step *= 2
    while step > 1:
        step = (step + 1) // 2
        if a[position : position + step] == b[position : position + step]:
            position += step
    return min(position, limit)


def common_tokens(a: TokenArray, b: TokenArray) -> int:
    """Number of leading ids that agree."""
    limit = min(a.size, b.size)
    different = a[:limit] != b[:limit]
    return int(different.argmax()) if different.any() else limit
