"""An engine that computes as always, but says what the test wants: tokens are forced, nothing else differs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from anchorline.engine.commands import Command
from anchorline.engine.request import GenerationRequest, ReplyConsumer
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
        if self.texts:
            eos = self._state.tokenizer.eos
            assert eos is not None
            request = replace(request, forcer=_Said([*self._state.prompts.fragment(self.texts.popleft()), eos]))
        self._engine.submit(request, consumer)

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def ask(self, command: Command[T]) -> Future[T]:
        return self._engine.ask(command)

    def stats(self) -> EngineStats:
        return self._engine.stats()
