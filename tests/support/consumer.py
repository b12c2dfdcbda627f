"""A consumer that keeps what it is told, and can be waited for."""

from __future__ import annotations

import threading

from anchorline.engine.request import CallReport, FinishReason, SampledToken
from anchorline.errors import AnchorlineError


class Recorder:
    """Implements ``ReplyConsumer``; asserts the order that the protocol promises."""

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.sampled: list[SampledToken] = []
        self.finishes: dict[int, FinishReason] = {}
        self.report: CallReport | None = None
        self.error: AnchorlineError | None = None
        self._stop_after = stop_after
        self._ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> Recorder:
        assert self._ended.wait(timeout=60), "the call did not end"
        return self

    def on_token(self, choice: int, token: SampledToken) -> bool:
        assert not self.has_ended
        assert choice not in self.finishes
        self.sampled.append(token)
        produced = self.tokens.setdefault(choice, [])
        produced.append(token.token)
        return len(produced) == self._stop_after

    def on_finish(self, choice: int, reason: FinishReason) -> None:
        assert not self.has_ended
        assert choice not in self.finishes
        self.finishes[choice] = reason

    def on_done(self, report: CallReport) -> None:
        assert not self.has_ended
        self.report = report
        self._ended.set()

    def on_error(self, error: AnchorlineError, report: CallReport | None) -> None:
        assert not self.has_ended
        self.error = error
        self.report = report
        self._ended.set()
