"""What the routes work with, joined by the command line; there are no module globals."""

from __future__ import annotations

import asyncio
import secrets
import string
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from anchorline.api.models import Served
from anchorline.api.options import ApiContext
from anchorline.api.responses_store import ResponseStore
from anchorline.cache.prompt import Prompt
from anchorline.config import ServerConfig
from anchorline.constraint.compiler import ConstraintCompiler
from anchorline.engine.commands import Command
from anchorline.engine.request import GenerationRequest, ReplyConsumer
from anchorline.engine.stats import EngineStats
from anchorline.llama.interface import SamplingParams, Tokenizer
from anchorline.metrics.metrics import Metrics
from anchorline.output.format import ReplyFormat
from anchorline.prompt.bounds import Budget, bounded
from anchorline.prompt.rewrites import Rewriting
from anchorline.prompt.turns import TurnMemo
from anchorline.script.script import Script
from anchorline.server.explanations import Explanations
from anchorline.server.warming import Warming
from anchorline.server.workers import Workers

T = TypeVar("T")

PING_SECONDS = 10.0
"""How long clients get to hear nothing."""

_LETTERS = string.ascii_letters + string.digits


class BuiltPrompt(Protocol):
    """A rendered and tokenised prompt."""

    @property
    def prompt(self) -> Prompt: ...

    @property
    def text(self) -> str: ...

    @property
    def asked(self) -> bytes:
        """What the reply answers, for the memory of turns."""
        ...

    @property
    def rewriting(self) -> Rewriting:
        """What of the request was rendered otherwise than it was sent."""
        ...

    @property
    def render_seconds(self) -> float: ...

    @property
    def tokenize_seconds(self) -> float: ...


class Prompts(Protocol):
    """What the routes ask of a PromptBuilder. CPU-bound: call it in ``ServerState.prepare``."""

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
        effort: str | None = None,
        continue_final: bool = False,
        tenant: str = "",
        generates: bool = True,
    ) -> BuiltPrompt: ...

    def beginning(
        self,
        messages: Sequence[Mapping[str, Any]],
        one: Sequence[Mapping[str, Any]],
        other: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        effort: str | None = None,
        tenant: str = "",
    ) -> Prompt:
        """What the prompts of ``messages`` with ``one`` behind them, and with ``other``, have in common."""
        ...

    def text(self, text: str, *, tenant: str = "") -> BuiltPrompt: ...

    def tokens(self, ids: Sequence[int]) -> BuiltPrompt: ...

    def fragment(self, text: str) -> tuple[int, ...]:
        """Ids of a piece of a reply; control-token texts in it are control tokens."""
        ...


class EngineFace(Protocol):
    """What the routes ask of an Engine."""

    @property
    def context_tokens(self) -> int: ...

    @property
    def parallel(self) -> int: ...

    @property
    def alive(self) -> bool: ...

    def prepare(self, sampling: SamplingParams) -> None:
        """Do ahead what takes long about a request with ``sampling``. For a worker thread."""
        ...

    def submit(self, request: GenerationRequest, consumer: ReplyConsumer) -> None:
        """Queue a request. Raises QueueFull, RequestError or EngineFailure."""
        ...

    def cancel(self, request_id: str) -> None:
        """Stop a request and free what it holds. Idempotent; unknown ids are ignored."""
        ...

    def ask(self, command: Command[T]) -> Future[T]:
        """The answer to a command that the engine carries out between two steps. Raises EngineFailure."""
        ...

    def stats(self) -> EngineStats:
        """Counters and gauges of a moment ago."""
        ...

    def fresh_stats(self) -> Future[EngineStats]:
        """Counters and gauges as of now. Raises EngineFailure."""
        ...


def new_id() -> str:
    """Letters and digits that no other request has."""
    return secrets.token_hex(12)


def _new_call_id() -> str:
    """Nine letters and digits: Mistral's templates refuse every other id of a tool call."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """Everything a route needs; shared by all requests, never changed."""

    config: ServerConfig
    engine: EngineFace
    prompts: Prompts
    tokenizer: Tokenizer
    served: Served
    constraints: ConstraintCompiler
    metrics: Metrics
    workers: Workers
    reply_format: ReplyFormat
    """How the model writes reasoning and tool calls."""
    turns: TurnMemo | None
    """Generated turns that ``prompts`` knows again; None where every prompt is a function of its request."""
    responses: ResponseStore
    """Responses that clients may come back to."""
    explanations: Explanations
    """Why prompts were prefilled."""
    sealed_turns: int = 0
    """Conversations whose last turn may wait to be sealed; with 0 none is."""
    warming: Warming = field(default_factory=lambda: Warming(()))
    """The anchors of --warm that are still to be made."""
    script: Script | None = None
    """Answers every chat call, when there is one."""
    wall_clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    new_id: Callable[[], str] = new_id
    new_call_id: Callable[[], str] = _new_call_id
    ping_seconds: float = PING_SECONDS
    """A stream that stays silent this long sends a comment, so that clients do not give up."""

    async def prepare(self, work: Callable[[], T]) -> T:
        """Render and tokenise on a worker thread, within the template's limits. Raises QueueFull.

        Cancelling this ends the renders too.
        """
        budget = Budget(self.config.limits, clock=self.monotonic)

        def bounded_work() -> T:
            with bounded(budget):
                return work()

        try:
            return await self.workers.run(bounded_work)
        except asyncio.CancelledError:
            budget.cancel()
            raise

    @property
    def context(self) -> ApiContext:
        """What requests are checked against."""
        return ApiContext(
            tokenizer=self.tokenizer,
            limits=self.config.limits,
            context_tokens=self.engine.context_tokens,
            parallel=self.engine.parallel,
        )
