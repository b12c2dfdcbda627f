"""Where a prompt may be cut, found by rendering parts of it.

    full render    system + tools ┊ user ┊ assistant ┊ tool ┊ generation prompt
    two renders with other first messages stop agreeing
                                  ^ head
    render(messages[:k]) stops agreeing with the full render
                                         ^           ^      ^ message ends; the last: generation

Cuts are hints. A template that cannot render a part just yields no cut there, and the renders
per request are bounded; correctness rests on token ids alone. Only exact mode, whose chunks end at
cuts, needs the same cuts whatever was asked before: there all of them are found, and an end that was
found before is taken over only where the render it came from would be the same and would end there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from anchorline.cache.prompt import Cut, CutKind
from anchorline.errors import RequestError
from anchorline.prompt.bounds import TemplateLimit
from anchorline.prompt.memo import ByteMemo
from anchorline.prompt.messages import Message, system_count
from anchorline.prompt.tokenise import Mark, PromptTokenizer, TokenizedText, common_characters

Render = Callable[[Sequence[Message]], str]
"""Renders guarded messages without generation prompt, else exactly as the full text was rendered."""

RENDERS_PER_REQUEST = 16
"""Most partial renders for message ends; the newest messages come first."""

FIRST_MESSAGES = ("alpha", "0")
"""Two first user messages that begin differently; where their renders part, the head ends."""


@dataclass(frozen=True, slots=True)
class CutPoints:
    """Cuts in token positions (BOS not counted), and where each message starts."""

    cuts: tuple[Cut, ...]
    message_starts: tuple[int, ...]
    head_tokens: int
    """Position of the head cut; 0 when there is none."""


class CutFinder:
    """Finds cuts; remembers heads by what they are made of. Thread-safe.

    With ``all_cuts`` every message end is found and the cuts are a function of the request alone;
    that takes one render for each message that was not seen before in this place.
    """

    def __init__(self, tokenizer: PromptTokenizer, *, all_cuts: bool = False, memo_bytes: int = 16 << 20) -> None:
        self._tokenizer = tokenizer
        self._all_cuts = all_cuts
        self._heads: ByteMemo[bytes, _Head] = ByteMemo(memo_bytes)
        self._ends: ByteMemo[bytes, _End] = ByteMemo(memo_bytes)

    def find(
        self,
        tokenized: TokenizedText,
        messages: Sequence[Message],
        render: Render,
        *,
        head_key: bytes,
        time_key: bytes = b"",
        generation: bool,
    ) -> CutPoints:
        """Cuts of the full render ``tokenized`` of ``messages``.

        ``head_key`` names everything the head is rendered from but the time, which ``time_key`` names
        where it is shown. ``generation`` tells that the text ends with a generation prompt. Leaves
        the message ends in ``tokenized.marks`` for later turns.
        """
        if self._all_cuts:
            head_key += b"\n" + time_key
        head = self._head(tokenized, messages[: system_count(messages)], render, head_key)
        if self._all_cuts:
            marks = self._all_message_ends(tokenized.text, messages, render, head_key)
        else:
            marks = self._message_ends(tokenized, messages, render)
        tokenized.marks = tuple(Mark(character, count) for count, character in sorted(marks.items()))
        head_tokens, system_tokens = (self._tokenizer.position(tokenized, end) for end in (head.end, head.system_end))
        ends = {count: self._tokenizer.position(tokenized, character) for count, character in marks.items()}
        return CutPoints(
            cuts=_cuts(messages, head_tokens, ends, generation=generation),
            message_starts=_starts(messages, system_tokens, ends),
            head_tokens=head_tokens,
        )

    def _head(self, tokenized: TokenizedText, system: Sequence[Message], render: Render, key: bytes) -> _Head:
        """The head as far as the text agrees with it."""
        known = self._heads.get(key)
        if known is not None and tokenized.text.startswith(known.text):
            return known
        # Also when a remembered head no longer fits (it may show the date): look again.
        one, other = (self._try(render, [*system, {"role": "user", "content": text}]) for text in FIRST_MESSAGES)
        if one is None or other is None:
            return _NO_HEAD
        text = one[: common_characters(one, other)]
        alone = self._try(render, system) if system else None
        head = _Head(text, common_characters(alone or "", text) or len(text))
        self._heads.put(key, head, 4 * len(text))
        return head.within(tokenized.text)

    def _message_ends(self, tokenized: TokenizedText, messages: Sequence[Message], render: Render) -> dict[int, int]:
        """Number of messages → character offset of their end; newest rendered first, known ones kept."""
        ends = {mark.messages: mark.character for mark in tokenized.marks if mark.messages <= len(messages)}
        oldest = max([system_count(messages), *ends]) + 1
        for count in range(len(messages), oldest - 1, -1)[:RENDERS_PER_REQUEST]:
            part = self._try(render, messages[:count])
            if part is not None:
                ends[count] = common_characters(part, tokenized.text)
        return ends

    def _all_message_ends(self, text: str, messages: Sequence[Message], render: Render, key: bytes) -> dict[int, int]:
        """As ``_message_ends``, of every message, and the same with anything remembered as with nothing."""
        digest = hashlib.sha256(key)
        known: dict[int, _End] = {}
        keys: dict[int, bytes] = {}
        for count, message in enumerate(messages, 1):
            digest.update(json.dumps(message).encode() + b"\n")
            if count > system_count(messages):
                keys[count] = digest.digest()
                remembered = self._ends.get(keys[count])
                if remembered is not None:
                    known[count] = remembered
        ends = {count: known[count].character for count in _still_true(text, known)}
        for count in keys.keys() - ends.keys():
            part = self._try(render, messages[:count])
            if part is not None:
                end = ends[count] = common_characters(part, text)
                self._ends.put(keys[count], _End(end, _digest(part[:end]), part[end : end + 1]), 200)
        return ends

    def _try(self, render: Render, messages: Sequence[Message]) -> str | None:
        """None where the template refuses these messages.

        Raises TemplateLimit when every cut is needed: how far the limits reach is no property of the request.
        """
        try:
            return render(messages)
        except TemplateLimit:
            if self._all_cuts:
                raise
            return None
        except RequestError:
            return None


@dataclass(frozen=True, slots=True)
class _Head:
    """What stands in front of the words of the first message behind the system messages."""

    text: str
    system_end: int
    """Character offset at which that message starts; at its words where system messages cannot be rendered alone."""

    @property
    def end(self) -> int:
        return len(self.text)

    def within(self, text: str) -> _Head:
        """The head as far as ``text`` agrees with it."""
        end = common_characters(self.text, text)
        return _Head(self.text[:end], min(self.system_end, end))


_NO_HEAD = _Head("", 0)


@dataclass(frozen=True, slots=True)
class _End:
    """Where the render of a part left some text: both begin with the same ``character`` characters."""

    character: int
    digest: bytes
    """Of those characters."""
    following: str
    """The part's next character; "" where it ends."""


def _still_true(text: str, known: Mapping[int, _End]) -> Iterator[int]:
    """Counts whose part leaves ``text`` at the character where it left the text it was compared with."""
    digest, position = hashlib.sha256(), 0
    for count, end in sorted(known.items(), key=lambda item: item[1].character):
        digest.update(_bytes(text[position : end.character]))
        position = end.character
        goes_on = end.following != "" and text[position : position + 1] == end.following
        if digest.digest() == end.digest and not goes_on:
            yield count


def _digest(text: str) -> bytes:
    return hashlib.sha256(_bytes(text)).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _cuts(messages: Sequence[Message], head: int, ends: dict[int, int], *, generation: bool) -> tuple[Cut, ...]:
    """Cuts by position; on one position HEAD goes before GENERATION before MESSAGE, newer before older."""
    found: dict[int, Cut] = {}
    if head:
        found[head] = Cut(head, CutKind.HEAD, system_count(messages) - 1 if system_count(messages) else None)
    for count in sorted(ends, reverse=True):
        is_last = generation and count == len(messages)
        kind = CutKind.GENERATION if is_last else CutKind.MESSAGE
        if ends[count]:
            found.setdefault(ends[count], Cut(ends[count], kind, count - 1))
    return tuple(found[position] for position in sorted(found))


def _starts(messages: Sequence[Message], system_tokens: int, ends: dict[int, int]) -> tuple[int, ...]:
    """Where each message starts: the end of the one before, or the last start known before it."""
    first = system_count(messages)
    starts = [0]
    for index in range(1, len(messages)):
        known = system_tokens if index == first else ends.get(index, 0)
        starts.append(max(starts[-1], known))
    return tuple(starts)
