"""A call and its streams: the engine's own view of one request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from anchorline.cache.classes import CallClass, at_end
from anchorline.cache.difference import Difference
from anchorline.cache.loading import Load
from anchorline.cache.prompt import Prompt
from anchorline.engine.live import LiveSequence, TokenBuffer
from anchorline.engine.request import (
    CallReport,
    FinishReason,
    GenerationRequest,
    MissReason,
    PlanKind,
    ReplyConsumer,
)
from anchorline.errors import AnchorlineError
from anchorline.llama.interface import Sampler, SamplingParams, TokenArray

BUFFER_SPARE_TOKENS = 256

Clock = Callable[[], float]
"""``time.monotonic``, passed in."""


@dataclass(slots=True)
class Restoration:
    """Where the prompt of a call came from; filled when its first stream is admitted."""

    plan: PlanKind = PlanKind.COLD
    resident_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    seen_tokens: int = 0
    miss: MissReason | None = None
    missing_cut: str | None = None
    difference: Difference | None = None
    sequence: int | None = None
    segments: tuple[tuple[int, int], ...] = ()
    plan_seconds: float = 0.0
    restore_seconds: float = 0.0
    expected_seconds: float = 0.0
    rejected_plans: tuple[tuple[PlanKind, str], ...] = ()

    @property
    def restored_tokens(self) -> int:
        return self.resident_tokens + self.host_tokens


@dataclass(slots=True, eq=False)
class Call:
    """One request with everything measured about it."""

    request: GenerationRequest
    consumer: ReplyConsumer
    max_tokens: int
    queued_seconds: float
    """When it was handed to the engine's thread."""
    streams: list[Stream] = field(default_factory=list)
    restoration: Restoration = field(default_factory=Restoration)
    call_class: CallClass | None = None
    """What the cache takes it for; known when its first stream is admitted, or waits for the disk tier."""
    admitted_seconds: float | None = None
    prefilled_seconds: float | None = None
    """When the first stream's prompt was decoded."""
    first_token_seconds: float | None = None
    reached_tokens: int = 0
    """Of the prompt, the most that the first stream has held."""
    sharing_seconds: float = 0.0
    """How long its first stream was held for another's prefill."""
    load_seconds: float = 0.0
    """How long it was held for the disk tier."""
    finished_streams: int = 0
    forked: bool = False
    """Whether the choices beyond the first have been let go."""

    @property
    def prompt(self) -> Prompt:
        return self.request.prompt

    @property
    def known_class(self) -> CallClass:
        return CallClass.COLD if self.call_class is None else self.call_class

    @property
    def is_finished(self) -> bool:
        return self.finished_streams == len(self.streams)

    def close(self) -> None:
        """Free the samplers of every stream. Idempotent."""
        for stream in self.streams:
            stream.close()

    def fail(self, error: AnchorlineError, now: float) -> None:
        """Tell the consumer that the call ends early, and what it did until then."""
        self.consumer.on_error(error, None if self.admitted_seconds is None else self.report(now))

    def report(self, now: float) -> CallReport:
        """The account of a call that is finished, or ended early."""
        received = self.request.received_seconds
        admitted = self.admitted_seconds if self.admitted_seconds is not None else now
        prefilled = self.prefilled_seconds if self.prefilled_seconds is not None else now
        source = self.restoration
        generated = sum(stream.generated for stream in self.streams)
        return CallReport(
            id=self.request.id,
            call_class=at_end(self.known_class, generated),
            plan=source.plan,
            prompt_tokens=len(self.prompt),
            resident_tokens=source.resident_tokens,
            host_tokens=source.host_tokens,
            disk_tokens=source.disk_tokens,
            prefilled_tokens=max(0, self.reached_tokens - source.restored_tokens),
            generated_tokens=generated,
            seen_tokens=source.seen_tokens,
            miss=source.miss,
            missing_cut=source.missing_cut,
            difference=source.difference,
            sequence=source.sequence,
            segments=source.segments,
            queue_seconds=admitted - received,
            sharing_seconds=self.sharing_seconds,
            load_seconds=self.load_seconds,
            switch_seconds=self.request.switch_seconds,
            plan_seconds=source.plan_seconds,
            restore_seconds=source.restore_seconds,
            prefill_seconds=max(0.0, prefilled - admitted - source.plan_seconds - source.restore_seconds),
            decode_seconds=now - prefilled,
            ttft_seconds=None if self.first_token_seconds is None else self.first_token_seconds - received,
            expected_seconds=source.expected_seconds,
            rejected_plans=source.rejected_plans,
        )


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a waiting stream is not started yet: ``source`` is about to prefill what both share, up to ``position``."""

    source: Stream
    position: int
    started_seconds: float

    @property
    def is_over(self) -> bool:
        """Whether the source got there, or does not run any more."""
        live = self.source.live
        return live is None or live.length >= self.position


@dataclass(frozen=True, slots=True)
class LoadHold:
    """It is not started before ``load`` is read from disk."""

    load: Load
    started_seconds: float

    @property
    def is_over(self) -> bool:
        return self.load.is_over


@dataclass(frozen=True, slots=True)
class ReturnHold:
    """It would take the cells of a conversation that is expected back by then. Ends when anything comes or ends."""

    until_seconds: float
    clock: Clock

    @property
    def is_over(self) -> bool:
        return self.clock() >= self.until_seconds


@dataclass(frozen=True, slots=True)
class Asked:
    """What a stream has asked of the disk tier, which it does once."""

    load: Load | None
    """None where the host tier had no room for it."""
    host_tokens: int
    """What the host tier had of its tokens before."""


@dataclass(slots=True, eq=False)
class Stream:
    """One choice of a call: known tokens, of which its live sequence has decoded the first."""

    call: Call
    choice: int
    buffer: TokenBuffer
    live: LiveSequence | None = None
    """None while waiting; the sequence it is decoded into while running."""
    hold: Hold | LoadHold | ReturnHold | None = None
    """While waiting: what it waits for, unless that is only its turn."""
    passes: int = 0
    """How many streams that came later started before it."""
    asked: Asked | None = None
    sampler: Sampler | None = None
    generated: int = 0
    finish: FinishReason | None = None
    stops: list[int] = field(default_factory=list)
    """Ascending positions at which the prefill pauses to capture a state."""

    @property
    def pending(self) -> int:
        """Known tokens that are not decoded yet: ≥ 1 while running."""
        assert self.live is not None
        return self.buffer.count - self.live.length

    @property
    def in_prompt(self) -> bool:
        """Whether prompt tokens are still to be decoded."""
        return self.live is None or self.live.length < len(self.call.prompt)

    @property
    def only_prefills(self) -> bool:
        """Whether its end is that of its prompt."""
        return self.call.max_tokens == 0

    @property
    def reply(self) -> TokenArray:
        """A view of what was generated so far."""
        return self.buffer.view(len(self.call.prompt), self.buffer.count)

    @property
    def sampling(self) -> SamplingParams:
        """The request's parameters; each choice has a seed of its own."""
        params = self.call.request.sampling
        if params.seed is None or self.choice == 0:
            return params
        return replace(params, seed=params.seed + self.choice)

    def end_load(self) -> None:
        """Let go of what was read from disk for it: it is started, or never will be."""
        if self.asked is not None and self.asked.load is not None:
            self.asked.load.end()

    def close(self) -> None:
        self.end_load()
        if self.sampler is not None:
            self.sampler.close()
            self.sampler = None


def open_call(
    request: GenerationRequest, consumer: ReplyConsumer, *, context_tokens: int, now: float | None = None
) -> Call:
    """A call with one waiting stream per choice; ``max_tokens`` is clamped to the context."""
    room = context_tokens - len(request.prompt)
    assert room >= 1
    call = Call(request, consumer, min(request.max_tokens, room), request.received_seconds if now is None else now)
    spare = min(call.max_tokens, BUFFER_SPARE_TOKENS)
    call.streams = [
        Stream(call, choice, TokenBuffer(request.prompt.tokens, spare=spare)) for choice in range(request.choices)
    ]
    return call
