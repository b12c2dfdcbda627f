"""Runs calls through a real engine loop over a ``NullRuntime``, and holds what it prefills against the oracle.

The oracle learns a prompt when its call is sent and the reply when it has ended: with calls that overlap it is
what a cache would prefill that shares also what is only just being computed, a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from anchorline.bench.oracle import CutOracle, Oracle, as_tokens
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.config import ContextConfig, EngineConfig
from anchorline.engine.caches import make_cache
from anchorline.engine.loop import EngineLoop
from anchorline.engine.request import CallReport, FinishReason, GenerationRequest, SampledToken
from anchorline.engine.stream import open_call
from anchorline.errors import AnchorlineError
from anchorline.llama.context import SPARE_SEQUENCES
from anchorline.llama.interface import SamplingParams
from anchorline.simulate.calls import SimulatedCall
from anchorline.simulate.runtime import NullRuntime, Sizes, VirtualClock

REPLY_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """What one call prefilled, and what a perfect cache would have."""

    index: int
    trace: str
    report: CallReport
    oracle_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The sums of one simulated run. ``skipped`` calls did not fit into the context."""

    calls: tuple[CallOutcome, ...]
    skipped: int
    evictions: int
    unsaved: int
    """Segments and states that were refused."""
    peak_bytes: int
    """Most bytes that the host tier held at the end of a call."""

    @property
    def prompt_tokens(self) -> int:
        return sum(call.report.prompt_tokens for call in self.calls)

    @property
    def prefilled_tokens(self) -> int:
        return sum(call.report.prefilled_tokens for call in self.calls)

    @property
    def oracle_tokens(self) -> int:
        return sum(call.oracle_tokens for call in self.calls)

    @property
    def ratio(self) -> float | None:
        """Prefilled ÷ oracle; None when no call fitted."""
        return self.prefilled_tokens / self.oracle_tokens if self.calls else None


class _Reply:
    """Keeps the reply of one call; implements ``ReplyConsumer``."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.report: CallReport | None = None

    def on_token(self, choice: int, token: SampledToken) -> bool:
        self.tokens.append(token.token)
        return False

    def on_finish(self, choice: int, reason: FinishReason) -> None:
        """Every reply is as long as it may be."""

    def on_done(self, report: CallReport) -> None:
        self.report = report

    def on_error(self, error: AnchorlineError, report: CallReport | None) -> None:
        raise error


@dataclass(slots=True, kw_only=True)
class Simulation:
    """One engine with an empty cache, and the calls that are sent to it."""

    calls: Sequence[SimulatedCall]
    loop: EngineLoop
    cache: PrefixCache
    clock: VirtualClock
    context_tokens: int
    oracle: Oracle | CutOracle
    _open: dict[int, _Reply] = field(default_factory=dict)
    _ended: dict[int, float] = field(default_factory=dict)
    """When each call ended."""
    _costs: dict[int, int] = field(default_factory=dict)
    _reports: dict[int, CallReport] = field(default_factory=dict)
    _peak_bytes: int = 0

    def run(self) -> Outcome:
        """Send every call when its turn comes, until all have ended."""
        skipped = 0
        waiting = list(range(len(self.calls)))
        while waiting or self._open:
            for index in [i for i in waiting if self._due_seconds(i) <= self.clock()]:
                waiting.remove(index)
                if len(self.calls[index].prompt) >= self.context_tokens:
                    skipped += 1
                    self._ended[index] = self.clock()
                else:
                    self._send(index)
            self._go_on(min(map(self._due_seconds, waiting), default=inf))
        outcomes = [
            CallOutcome(
                index=index,
                trace=self.calls[index].trace,
                report=self._reports[index],
                oracle_tokens=self._costs[index],
            )
            for index in sorted(self._reports)
        ]
        return Outcome(
            calls=tuple(outcomes),
            skipped=skipped,
            evictions=self.cache.counters.evictions,
            unsaved=self.cache.counters.unsaved.total(),
            peak_bytes=self._peak_bytes,
        )

    def _send(self, index: int) -> None:
        prompt = self.calls[index].prompt
        self._costs[index] = self.oracle.cost(prompt.tokens, [cut.position for cut in prompt.cuts])
        reply = self._open[index] = _Reply()
        request = GenerationRequest(
            id=f"call-{index}",
            prompt=prompt,
            sampling=SamplingParams(temperature=0),
            max_tokens=REPLY_TOKENS,
            received_seconds=self.clock(),
        )
        self.loop.open(open_call(request, reply, context_tokens=self.context_tokens))

    def _due_seconds(self, index: int) -> float:
        """When a call is to be sent; infinity as long as one that it waits for has not ended."""
        call = self.calls[index]
        ended = max((self._ended.get(earlier, inf) for earlier in call.after), default=0.0)
        return max(call.earliest_seconds, ended + call.gap_seconds)

    def _go_on(self, due_seconds: float) -> None:
        """Go on until a reply ends or a call is due; with nothing open, until all is saved."""
        while self.loop.has_work:
            self.loop.step()
            ended = [index for index, reply in self._open.items() if reply.report is not None]
            for index in ended:
                self._end(index, self._open.pop(index))
            self._peak_bytes = max(self._peak_bytes, self.cache.arena.used_bytes)
            if self._open and (ended or due_seconds <= self.clock()):
                return
        due_seconds = min(due_seconds, self.loop.due_seconds)
        if due_seconds < inf:
            self.clock.wait_until(due_seconds)

    def _end(self, index: int, reply: _Reply) -> None:
        assert reply.report is not None
        self._reports[index] = reply.report
        self._ended[index] = self.clock()
        self.oracle.reply(self.calls[index].prompt.tokens, as_tokens(reply.tokens))


def simulation_of(
    calls: Sequence[SimulatedCall],
    config: EngineConfig,
    sizes: Sizes,
    *,
    context_tokens: int,
    vocab_size: int,
) -> Simulation:
    """An engine as ``config`` has it, over a null runtime of ``sizes``.

    The oracle of a stateful model, as the model, resumes only at cuts.
    """
    clock = VirtualClock()
    defaults = ContextConfig()
    runtime = NullRuntime(
        sizes,
        clock=clock,
        context_tokens=context_tokens,
        sequences=config.parallel + config.resident_idle + (0 if sizes.state_bytes else SPARE_SEQUENCES),
        vocab_size=vocab_size,
        batch_tokens=defaults.batch_tokens,
        ubatch_tokens=defaults.ubatch_tokens,
    )
    cache = make_cache(config, runtime, clock)
    assert cache is not None, "a simulation without a cache has nothing to say"
    return Simulation(
        calls=calls,
        loop=EngineLoop(runtime, config, cache, clock),
        cache=cache,
        clock=clock,
        context_tokens=context_tokens,
        oracle=CutOracle() if sizes.state_bytes else Oracle(),
    )


def most_bytes(calls: Sequence[SimulatedCall], sizes: Sizes) -> int:
    """More than all of ``calls`` can take, nothing shared and everything copied once."""
    tokens = sum(len(call.prompt) + REPLY_TOKENS for call in calls)
    cuts = sum(len(call.prompt.cuts) + 1 for call in calls)
    return 2 * (tokens * sizes.bytes_per_token + cuts * sizes.state_bytes)
