"""Runs workloads: round by round and step by step, each step on every server in turn, in an order that rotates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from anchorline.bench.client import CallFailed, Unreachable
from anchorline.bench.oracle import SharedOracle
from anchorline.bench.process import ServerFailed
from anchorline.bench.runner import run_plan
from anchorline.bench.standing.measures import Sample
from anchorline.bench.standing.servers import Entrant, Prompt, Server
from anchorline.bench.standing.workloads import Call, Step, Steps

Item = TypeVar("Item")
Given = TypeVar("Given")
Render = Callable[[dict[str, object]], Prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One step of one round as all servers get it: its calls, with the places of the first in the workload."""

    workload: str
    round: int
    number: int
    """Of the step in its round."""
    first: int
    step: Step
    prompts: tuple[Prompt, ...]


@dataclass(slots=True)
class Seat:
    """One server, what it should have cached by now, and why it takes part no more."""

    entrant: Entrant
    server: Server | None = None
    failed: str | None = None
    any_position: SharedOracle = field(default_factory=lambda: SharedOracle(at_cuts=False))
    at_cuts: SharedOracle = field(default_factory=lambda: SharedOracle(at_cuts=True))

    def take(self, turn: Turn) -> list[Sample]:
        """Answer the calls of ``turn``. Raises CallFailed, Unreachable or ServerFailed."""
        if turn.step.restart:
            self.close()
        if self.server is None:
            self.server = self.entrant.start()
        server = self.server
        samples = answer_all(turn.step.calls, lambda place: self._sample(server, turn, place))
        server.settle()
        return samples

    def warm_up(self, prompt: Prompt) -> None:
        """Start the server and let it answer a call that is not measured."""
        self.server = self.entrant.start()
        self.server.ask(prompt)
        self.server.settle()
        for oracle in (self.any_position, self.at_cuts):
            oracle.cost(prompt.tokens, prompt.cuts)

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def _sample(self, server: Server, turn: Turn, place: int) -> Sample:
        call, prompt = turn.step.calls[place], turn.prompts[place]
        oracle_tokens = self.any_position.cost(prompt.tokens, prompt.cuts)
        cut_oracle_tokens = self.at_cuts.cost(prompt.tokens, prompt.cuts)
        reply = server.ask(prompt)
        self.any_position.reply(prompt.tokens, reply.tokens)
        return Sample(
            workload=turn.workload,
            round=turn.round,
            step=turn.number,
            place=turn.first + place,
            call=call.name,
            role=call.role,
            server=self.entrant.name,
            prompt_tokens=int(prompt.tokens.size),
            prefilled_tokens=reply.prefilled_tokens,
            oracle_tokens=oracle_tokens,
            cut_oracle_tokens=cut_oracle_tokens,
            ttft_ms=reply.ttft_ms,
            prefill_ms=reply.prefill_ms,
            tier=reply.tier,
        )


class Lineup:
    """The servers of one model, side by side. Closing it stops all of them.

    One that fails is closed and takes part no more; where it is among ``needed``, what it failed with is raised.
    """

    def __init__(self, entrants: Iterable[Entrant], *, needed: Sequence[str], render: Render) -> None:
        self._seats = [Seat(entrant) for entrant in entrants]
        self._needed = needed
        self._render = render

    @property
    def failures(self) -> dict[str, str]:
        """Why servers take part no more, by their names."""
        return {seat.entrant.name: seat.failed for seat in self._seats if seat.failed is not None}

    def warm_up(self, body: dict[str, object]) -> None:
        """Start all servers and let each answer ``body``, which is not measured."""
        prompt = self._render(body)
        for seat in self._seats:
            self._guarded(seat, Seat.warm_up, prompt)

    def run(self, workload: str, rounds: Iterable[Steps], *, without: Sequence[str] = ()) -> Iterator[list[Sample]]:
        """What each step of each round gave on all servers but ``without``, as it comes."""
        seats = [seat for seat in self._seats if seat.entrant.name not in without]
        for number, steps in enumerate(rounds):
            first = 0
            for place, step in enumerate(steps):
                prompts = tuple(self._render(call.body) for call in step.calls)
                turn = Turn(workload=workload, round=number, number=place, first=first, step=step, prompts=prompts)
                samples: list[Sample] = []
                for seat in rotated(seats, number + place):
                    samples += self._guarded(seat, Seat.take, turn) or []
                yield samples
                first += len(step.calls)

    def _guarded(self, seat: Seat, act: Callable[[Seat, Given], Item], given: Given) -> Item | None:
        """What ``act`` gives; None when the server of ``seat`` has failed, now or before."""
        if seat.failed is not None:
            return None
        try:
            return act(seat, given)
        except (CallFailed, Unreachable, ServerFailed) as error:
            seat.failed = str(error)
            seat.close()
            if seat.entrant.name in self._needed:
                raise
            return None

    def __enter__(self) -> Lineup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for seat in self._seats:
            seat.close()


def rotated(items: Sequence[Item], by: int) -> list[Item]:
    """``items``, begun with another one each time."""
    start = by % len(items)
    return [*items[start:], *items[:start]]


def answer_all(calls: Sequence[Call], ask: Callable[[int], Item]) -> list[Item]:
    """What ``ask`` gives for each place of ``calls``, all under way at the same time but for those that are due later.

    Raises what the first to fail raised, once the calls under way have ended; no others are sent then.
    """
    if len(calls) == 1:
        return [ask(0)]
    return [done.result for done in run_plan(calls, ask, concurrency=len(calls))]
