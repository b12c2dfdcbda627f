"""An engine that computes as always, but says what the test wants: tokens are forced, nothing else differs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from anchorline.engine.commands import Command
from anchorline.engine.request import CallReport, GenerationRequest, ReplyConsumer
from anchorline.engine.stats import EngineStats
from anchorline.llama.interface import SamplingParams, TokenArray
from anchorline.server.state import EngineFace, ServerState

T = TypeVar("T")


class _Said:
    """A ``TokenForcer`` for one text and the end of it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def force(self, choice: int, generated: TokenArray) -> int | None:
        return self._tokens[generated.size]


class Seals:
    """Counts the background calls of an engine, for those who wait for them. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.begun = 0
        self.completed = 0

    def wait(self, *, begun: int = 0, completed: int = 0) -> None:
        """Until so many have begun, and so many have come to their end."""
        with self._changed:
            enough = self._changed.wait_for(lambda: self.begun >= begun and self.completed >= completed, timeout=60)
        assert enough, f"{self.begun} seals have begun and {self.completed} are complete"

    def count(self, *, begun: int = 0, completed: int = 0) -> None:
        with self._changed:
            self.begun += begun
            self.completed += completed
            self._changed.notify_all()


class _Watched:
    """The consumer of a background call, whose end is counted."""

    def __init__(self, consumer: ReplyConsumer, seals: Seals) -> None:
        self._seals = seals
        self.on_token, self.on_finish, self.on_error = consumer.on_token, consumer.on_finish, consumer.on_error
        self._on_done = consumer.on_done

    def on_done(self, report: CallReport) -> None:
        self._on_done(report)
        self._seals.count(completed=1)


class Live:
    """A live server, once ``adapt`` and ``url`` were given to it, and what it is to say."""

    def __init__(self) -> None:
        self.url = ""
        self.engine: SayingEngine | None = None

    def adapt(self, state: ServerState) -> ServerState:
        self.engine = SayingEngine(state.engine, state)
        return replace(state, engine=self.engine)

    def says(self, *texts: str) -> None:
        assert self.engine is not None
        self.engine.texts.extend(texts)


class SayingEngine:
    """Answers the next calls with ``texts``, in which control-token texts are control tokens; then as it likes."""

    def __init__(self, engine: EngineFace, state: ServerState) -> None:
        self._engine = engine
        self._state = state
        self.texts: deque[str] = deque()
        self.seals = Seals()

    @property
    def context_tokens(self) -> int:
        return self._engine.context_tokens

    @property
    def parallel(self) -> int:
        return self._engine.parallel

    @property
    def alive(self) -> bool:
        return self._engine.alive

    def prepare(self, sampling: SamplingParams) -> None:
        self._engine.prepare(sampling)

    def submit(self, request: GenerationRequest, consumer: ReplyConsumer) -> None:
        if request.background:
            self._engine.submit(request, _Watched(consumer, self.seals))
            self.seals.count(begun=1)
            return
        if self.texts:
            eos = self._state.tokenizer.eos
            assert eos is not None
            request = replace(request, forcer=_Said([*self._state.prompts.fragment(self.texts.popleft()), eos]))
        self._engine.submit(request, consumer)

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def ask(self, command: Command[T]) -> Future[T]:
        return self._engine.ask(command)

    def fresh_stats(self) -> Future[EngineStats]:
        return self._engine.fresh_stats()

    def stats(self) -> EngineStats:
        return self._engine.stats()
