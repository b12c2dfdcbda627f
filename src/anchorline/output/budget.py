"""A bound on reasoning: a block that has used up its tokens is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anchorline.llama.interface import TokenArray, Tokenizer
from anchorline.output.format import ReasoningTags


@dataclass(slots=True)
class _Choice:
    """One choice's reply as far as it was looked at."""

    is_open: bool
    answers: bool = False
    """Text that is no reasoning has begun: what looks like an opening tag in it is text too."""
    tail: bytes = b""
    """The last bytes, in which a tag may have begun; empty behind a tag."""
    seen_tokens: int = 0
    used_tokens: int = 0
    """Tokens in reasoning blocks; all of them count, so that a second block gets what the first left."""
    closed_tokens: int = 0
    """How much of the closing tag has been forced."""


class ReasoningBudget:
    """The ``TokenForcer`` that ends reasoning after ``budget_tokens`` by the tokens of its closing tag.

    ``closing`` are the ids of the tag's text; ``opened`` tells that the prompt ends inside a block.
    A tag that the model writes over several tokens is found like any other. A block begins where the
    reply does or another has ended, and where the opening tag is made of control tokens anywhere.
    """

    def __init__(
        self,
        tags: ReasoningTags,
        *,
        tokenizer: Tokenizer,
        closing: Sequence[int],
        budget_tokens: int,
        opened: bool,
        choices: int,
    ) -> None:
        assert closing, "a closing tag has tokens"
        self._begin, self._end = tags.begin.rstrip().encode(), tags.end.encode()
        self._anywhere = any(text in tags.begin for text in tokenizer.control_tokens)
        self._tokenizer = tokenizer
        self._closing = tuple(closing)
        self._budget_tokens = budget_tokens
        self._choices = [_Choice(opened) for _ in range(choices)]

    def force(self, choice: int, generated: TokenArray) -> int | None:
        state = self._choices[choice]
        for token in generated[state.seen_tokens :].tolist():
            self._look_at(state, token)
        state.seen_tokens = generated.size
        if not state.is_open or state.used_tokens < self._budget_tokens:
            state.closed_tokens = 0
            return None
        if state.closed_tokens == len(self._closing):  # a vocabulary that cannot spell the tag
            state.is_open, state.answers = False, True
            return None
        state.closed_tokens += 1
        return self._closing[state.closed_tokens - 1]

    def _look_at(self, state: _Choice, token: int) -> None:
        if state.answers and not self._anywhere:
            return
        state.used_tokens += state.is_open
        state.tail += self._tokenizer.special_piece(token)
        if not state.is_open and not self._anywhere:
            state.tail = self._without_idle_ends(state.tail)
        tag = self._end if state.is_open else self._begin
        if tag in state.tail and (state.is_open or self._anywhere or state.tail.startswith(tag)):
            state.is_open = not state.is_open
            state.tail = b""
        elif state.is_open or self._anywhere:
            state.tail = state.tail[-len(tag) :]
        else:
            state.answers = not any(known.startswith(state.tail) for known in (self._begin, self._end))

    def _without_idle_ends(self, text: bytes) -> bytes:
        """``text`` without white space and closing tags at its beginning: those that close nothing say nothing."""
        text = text.lstrip()
        while text.startswith(self._end):
            text = text[len(self._end) :].lstrip()
        return text
