"""The calls of a replay: what a server prefilled of each prompt, and what a perfect cache would have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from anchorline.bench.client import Answer, CallFailed, Client
from anchorline.bench.live.schedule import AT_ONCE, plan_calls
from anchorline.bench.oracle import SharedOracle, Tokens
from anchorline.bench.report import CallRecord
from anchorline.bench.trace import Trace

REPLY_TOKENS = 8


class Peer(Protocol):
    """Another server, fed the same token ids; several threads may ask it at the same time."""

    name: str

    def complete(self, prompt: Tokens, *, max_tokens: int) -> PeerAnswer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAnswer:
    """Times are milliseconds; None where they were not measured."""

    prompt_tokens: int
    prefilled_tokens: int
    reply_tokens: Tokens
    ttft_ms: float | None = None
    """From sending the request to the first token received."""
    prefill_ms: float | None = None
    """Of that, the peer's own figure for its prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCost:
    """What the peer prefilled for one prompt, and what a perfect cache of the peer would have."""

    prefilled_tokens: int
    oracle_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCall:
    """One call that was answered. ``oracle_tokens`` is what a perfect cache would have prefilled."""

    trace: str
    index: int
    body: dict[str, Any]
    prompt: Tokens
    cuts: tuple[int, ...]
    answer: Answer
    oracle_tokens: int

    def record(self, *, same_answer: bool | None = None, beside: PeerCost | None = None) -> CallRecord:
        return CallRecord(
            trace=self.trace,
            index=self.index,
            prompt_tokens=self.answer.prompt_tokens,
            cached_tokens=self.answer.cached_tokens,
            prefilled_tokens=self.answer.prefilled_tokens,
            oracle_tokens=self.oracle_tokens,
            plan=self.answer.timings.get("plan"),
            ttft_ms=self.answer.ttft_ms,
            same_answer=same_answer,
            peer_prefilled_tokens=beside.prefilled_tokens if beside is not None else None,
            peer_oracle_tokens=beside.oracle_tokens if beside is not None else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredServer:
    """The server under test, held against ``oracle``. Replies are at most ``max_tokens`` long."""

    client: Client
    oracle: SharedOracle
    max_tokens: int

    def replay(self, trace: Trace, *, pace: float = AT_ONCE) -> Iterator[MeasuredCall]:
        """Send the calls of ``trace`` in order, each after the reply to the one before and the time between them.

        Calls whose prompt does not fit into the context are left out. Raises CallFailed for any refusal.
        """
        context_tokens = self.client.context_tokens()
        gaps = gaps_seconds(trace, pace)
        for index, request in enumerate(trace.requests):
            time.sleep(gaps[index])
            body = capped(request.body, max_tokens=self.max_tokens)
            prompt, cuts = self.client.prompt(body)
            if prompt.size >= context_tokens:
                continue
            oracle_tokens = self.oracle.cost(prompt, cuts)
            answer = self.client.chat(body)
            self.oracle.reply(prompt, answer.reply_tokens)
            if answer.prompt_tokens != prompt.size:
                raise CallFailed(
                    f"call {index} of {trace.name}: /apply-template gives {prompt.size} tokens "
                    f"and the call had {answer.prompt_tokens}",
                    status=200,
                )
            yield MeasuredCall(
                trace=trace.name,
                index=index,
                body=body,
                prompt=prompt,
                cuts=tuple(cuts),
                answer=answer,
                oracle_tokens=oracle_tokens,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPeer:
    """A peer, held against an oracle of its own: its replies differ from ours."""

    peer: Peer
    oracle: SharedOracle
    max_tokens: int

    def complete(self, call: MeasuredCall) -> PeerCost:
        """Let the peer continue the prompt of ``call``."""
        oracle_tokens = self.oracle.cost(call.prompt, call.cuts)
        answer = self.peer.complete(call.prompt, max_tokens=self.max_tokens)
        self.oracle.reply(call.prompt, answer.reply_tokens)
        return PeerCost(prefilled_tokens=answer.prefilled_tokens, oracle_tokens=oracle_tokens)


def gaps_seconds(trace: Trace, pace: float) -> list[float]:
    """What passes before each call of ``trace``, since the reply before it, ``pace`` times as fast as recorded."""
    return [call.gap_seconds for call in plan_calls([trace], pace=pace, overlapping=False)]


def capped(body: dict[str, Any], *, max_tokens: int) -> dict[str, Any]:
    """``body`` as recorded, but greedy and with a short reply that comes as a whole."""
    dropped = ("max_completion_tokens", "stream", "stream_options")
    return {
        **{key: value for key, value in body.items() if key not in dropped},
        "max_tokens": max_tokens,
        "temperature": 0,
    }
