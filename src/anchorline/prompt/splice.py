"""Putting generated ids where a template has written a turn anew.

    rendered   …<|im_start|>assistant\\n  <tool_call>{"a": 1, "b": 2}</tool_call>  <|im_end|>\\n…
               render(messages[:k]) with  ^ the turn as the template writes it  ^
               a generation prompt ends here               the token that ends a turn comes next
    spliced    …<|im_start|>assistant\\n  placeholder of the ids that were generated <|im_end|>\\n…

The ids stand there only if the template permits: what it wrote must be the very text that was generated, or
say the same when it is read as a reply. A template that leaves out the reasoning of
old turns, say, gets its way. And the text up to there must begin like the prompt that the turn was generated
from; then the ids of both are the same up to the turn's end.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from anchorline.errors import RequestError
from anchorline.llama.interface import TokenArray
from anchorline.output.meaning import Said
from anchorline.prompt.messages import Message
from anchorline.prompt.tokenise import PromptTokenizer, common_characters
from anchorline.prompt.turns import GeneratedTurn, Place

PLACES_PER_REQUEST = 16
"""Most turns that are looked for anew in one request, two renders each; the others wait for the next."""

Read = Callable[[str, str], Said]
"""(text, end of the prompt before it) → what it says as a reply."""


class Render(Protocol):
    """Renders guarded messages as the full text was rendered, without any placeholder."""

    def __call__(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str: ...


@dataclass(frozen=True, slots=True)
class Span:
    """text[start:end] is written by the turn that ``placeholder`` stands for."""

    start: int
    end: int
    placeholder: str
    turn: GeneratedTurn


@dataclass(frozen=True, slots=True)
class Splices:
    """The turns whose ids stand in a rendered text, ascending."""

    text: str = ""
    spans: tuple[Span, ...] = ()

    @property
    def placeholders(self) -> dict[str, TokenArray]:
        return {span.placeholder: span.turn.tokens for span in self.spans}

    def apply(self, text: str) -> str:
        """``text``, the whole render or that of a part, with placeholders as far as it agrees with the whole."""
        if not self.spans:
            return text
        agrees = len(text) if text is self.text else common_characters(self.text, text)
        parts: list[str] = []
        position = 0
        for span in self.spans:
            if span.end > agrees:
                break
            parts += text[position : span.start], span.placeholder
            position = span.end
        return "".join([*parts, text[position:]])

    def reveal(self, text: str) -> str:
        """``text``, which ``apply`` made, with what was generated in the place of each placeholder."""
        parts: list[str] = []
        position = 0
        for span in self.spans:
            place = text.find(span.placeholder, position)
            if place < 0:
                break
            parts += text[position:place], span.turn.text
            position = place + len(span.placeholder)
        return "".join([*parts, text[position:]])


NO_SPLICES = Splices()


@dataclass(slots=True)
class Splicer:
    """Finds the places of generated turns in rendered texts. Thread-safe.

    A turn keeps the place where it was found last: it holds as long as the text up to there is the same, so
    a warm turn costs one hash over the text instead of a render for each turn.
    """

    tokenizer: PromptTokenizer
    searches: int = field(default=0, init=False)
    """Turns that were looked for with renders so far."""

    def find(
        self,
        text: str,
        turns: Mapping[int, GeneratedTurn],
        messages: Sequence[Message],
        render: Render,
        read: Read,
        *,
        guard: str,
    ) -> Splices:
        """Where the turns of ``messages`` (index → turn) may stand in ``text``, the render of all of them."""
        spans, hashed, left = list[Span](), _Hashed(text), PLACES_PER_REQUEST
        for index in sorted(turns):
            turn = turns[index]
            place = turn.places.get(index)
            if place is None or hashed.digest(place.checked) != place.digest:
                if not left:
                    break
                left -= 1
                self.searches += 1
                span, checked = self._search(text, turn, index, messages, render, read, guard)
                place = Place(span, checked, hashed.digest(checked))
                turn.note(index, place)
            if place.span is not None:
                spans.append(Span(*place.span, self.tokenizer.placeholder(turn.tokens), turn))
        return Splices(text, tuple(spans))

    def _search(
        self,
        text: str,
        turn: GeneratedTurn,
        index: int,
        messages: Sequence[Message],
        render: Render,
        read: Read,
        guard: str,
    ) -> tuple[tuple[int, int] | None, int]:
        """Where the turn's ids may stand in ``text``, and how much of it says so."""
        try:
            before = render(messages[:index], add_generation_prompt=True)
            part = render(messages[: index + 1])
        except RequestError:
            return None, len(text)
        start = len(before)
        if not text.startswith(before):
            return None, common_characters(before, text) + 1
        same = _end_behind(text, start, length=len(turn.text), guard=guard)
        if text[start:same].replace(guard, "") == turn.text:
            return (start, same), same
        end, checked = self._end(text, start, part, turn)
        if end is not None and read(text[start:end].replace(guard, ""), before).means(turn.said):
            return (start, end), checked
        return None, max(same, checked) + 1

    def _end(self, text: str, start: int, part: str, turn: GeneratedTurn) -> tuple[int | None, int]:
        """Where in ``text`` the turn written from ``start`` on ends, and how much of the text says so.

        ``part`` is the render that the turn ends. Mostly the text goes on from there, though another token may end
        a turn that something follows. A template that writes the last turn in a way of its own still ends
        it by the same token.
        """
        last = next(iter(deque(self.tokenizer.control.pattern.finditer(part, start), maxlen=1)), None)
        if last is None or part[last.end() :].strip() or turn.text.rstrip().endswith(last.group()):
            # No token ends it, and white space behind it parts it from what follows.
            end = len(part.rstrip()) if turn.text == turn.text.rstrip() else len(part)
            agrees = common_characters(part, text)
            return (end, end) if agrees >= end else (None, agrees)
        if text.startswith(part[: last.start()]) and self.tokenizer.control.pattern.match(text, last.start()):
            return last.start(), last.start()
        for match in self.tokenizer.control.pattern.finditer(text, start):
            if match.group() == last.group():
                return match.start(), match.end()
        return None, len(text)


def _end_behind(text: str, start: int, *, length: int, guard: str) -> int:
    """End of the ``length`` characters from ``start`` on; guards don't count."""
    end = start + length
    while end < len(text) and (missing := length + text.count(guard, start, end) - (end - start)):
        end += missing
    return min(end, len(text))


class _Hashed:
    """Digests of the beginnings of a text, asked for in ascending order for the price of one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._hash = hashlib.sha256()
        self._position = 0

    def digest(self, end: int) -> bytes:
        if end < self._position:
            return hashlib.sha256(_bytes(self._text[:end])).digest()
        self._hash.update(_bytes(self._text[self._position : end]))
        self._position = end
        return self._hash.digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
