"""One call's reply: engine tokens in, text events out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from anchorline.engine.request import CallReport, FinishReason, SampledToken
from anchorline.errors import AnchorlineError
from anchorline.llama.interface import Tokenizer
from anchorline.output.events import ChoiceFinished, ReplyEvent, ReplyFailed, ReplyFinished, TextDelta, TokenText
from anchorline.output.stops import StopFinder
from anchorline.output.text import TextDecoder


class _Choice:
    """Text under way of one choice. Offsets count decoded characters since its start."""

    __slots__ = ("decoded", "decoder", "shown", "stops", "waiting")

    def __init__(self, stop: tuple[str, ...]) -> None:
        self.decoder = TextDecoder()
        self.stops = StopFinder(stop)
        self.decoded = 0
        self.shown = 0
        self.waiting: deque[tuple[int, int, TokenText]] = deque()
        """(start, end, token) of the tokens not reported yet."""

    def take(self, token: TokenText) -> tuple[str, tuple[TokenText, ...]]:
        """The text that may be shown now and the tokens that are complete with it."""
        start = self.decoded
        text = self.decoder.feed(token.text_bytes)
        self.decoded += len(text)
        # A token that ends inside a character is complete when that character is.
        end = self.decoded + self.decoder.holds_bytes
        self.waiting.append((start, end, token))
        return self._show(self.stops.feed(text))

    def finish(self) -> tuple[str, tuple[TokenText, ...]]:
        """The text still held back, and the tokens left (none of a stop string's)."""
        if self.stops.hit is not None:
            return "", ()
        text, tokens = self._show(self.stops.feed(self.decoder.flush()))
        if self.stops.hit is None:
            text += self.stops.flush()
            tokens += tuple(token for _, _, token in self.waiting)
            self.waiting.clear()
        return text, tokens

    def _show(self, text: str) -> tuple[str, tuple[TokenText, ...]]:
        self.shown += len(text)
        if self.stops.hit is not None:
            tokens = tuple(token for start, _, token in self.waiting if start < self.shown)
            self.waiting.clear()
            return text, tokens
        if not text:
            return "", ()
        complete = []
        while self.waiting and self.waiting[0][1] <= self.shown:
            complete.append(self.waiting.popleft()[2])
        return text, tuple(complete)


class Reply:
    """The ``ReplyConsumer`` that turns tokens into events.

    ``emit`` is called on the engine thread, so it must be quick and must not block or raise; per
    choice the events come in order, and the last event of all is ReplyFinished or ReplyFailed.
    Control tokens have no text, but for those whose texts are in ``spelled``, which a parser looks for.
    """

    __slots__ = ("_choices", "_emit", "_spelled", "_tokenizer")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        choices: int,
        stop: tuple[str, ...],
        emit: Callable[[ReplyEvent], None],
        spelled: frozenset[str] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        control = tokenizer.control_tokens if spelled else {}
        self._spelled = frozenset(control[text] for text in spelled if text in control)
        self._emit = emit
        self._choices = [_Choice(stop) for _ in range(choices)]

    def on_token(self, choice: int, token: SampledToken) -> bool:
        """Take a token; True once a stop string was found."""
        state = self._choices[choice]
        if state.stops.hit is not None:
            return True
        id = token.token
        piece = self._tokenizer.special_piece(id) if id in self._spelled else self._tokenizer.piece(id)
        text, tokens = state.take(TokenText(id, piece, token.logprob, token.alternatives))
        if text or tokens:
            self._emit(TextDelta(choice, text, tokens))
        return state.stops.hit is not None

    def on_finish(self, choice: int, reason: FinishReason) -> None:
        """Show what was held back and end the choice; a stop string found makes the reason STOP."""
        state = self._choices[choice]
        text, tokens = state.finish()
        if text or tokens:
            self._emit(TextDelta(choice, text, tokens))
        hit = state.stops.hit
        self._emit(ChoiceFinished(choice, reason if hit is None else FinishReason.STOP, hit))

    def on_done(self, report: CallReport) -> None:
        self._emit(ReplyFinished(report))

    def on_error(self, error: AnchorlineError, report: CallReport | None) -> None:
        self._emit(ReplyFailed(error, report))
