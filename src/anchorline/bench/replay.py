"""Replays chat traces against a live server and holds its prefilled tokens against the oracle."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from anchorline.bench.client import Answer, CallFailed, Client
from anchorline.bench.oracle import CutOracle, Oracle, Tokens
from anchorline.bench.trace import Trace

REPLY_TOKENS = 8
TOO_LONG = "context_length_exceeded"


class Peer(Protocol):
    """Another server, fed the same token ids."""

    name: str

    def complete(self, prompt: Tokens, *, max_tokens: int) -> PeerAnswer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAnswer:
    prompt_tokens: int
    prefilled_tokens: int
    reply_tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One replayed call. ``oracle_tokens`` is what a perfect cache would have prefilled."""

    index: int
    prompt_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    oracle_tokens: int
    plan: str | None
    ttft_ms: float | None
    same_answer: bool | None
    """Whether the reference server gave the same reply ids; None when it was not asked."""
    peer_prefilled_tokens: int | None = None
    peer_oracle_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The sums of one replayed trace. ``skipped`` calls did not fit into the context."""

    name: str
    calls: tuple[CallRecord, ...]
    skipped: int
    wall_seconds: float
    peer_name: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        return sum(call.prompt_tokens for call in self.calls)

    @property
    def prefilled_tokens(self) -> int:
        return sum(call.prefilled_tokens for call in self.calls)

    @property
    def oracle_tokens(self) -> int:
        return sum(call.oracle_tokens for call in self.calls)

    @property
    def ratio(self) -> float | None:
        """Prefilled ÷ oracle; None for an empty replay."""
        return self.prefilled_tokens / self.oracle_tokens if self.calls else None

    @property
    def peer_prefilled_tokens(self) -> int | None:
        counts = [c.peer_prefilled_tokens for c in self.calls if c.peer_prefilled_tokens is not None]
        return sum(counts) if counts else None

    @property
    def peer_ratio(self) -> float | None:
        """The peer's own ratio: its replies differ from ours, so its oracle does too."""
        costs = [c.peer_oracle_tokens for c in self.calls if c.peer_oracle_tokens is not None]
        return (self.peer_prefilled_tokens or 0) / sum(costs) if costs else None

    @property
    def compared_answers(self) -> int:
        """Calls that the reference server answered too."""
        return sum(call.same_answer is not None for call in self.calls)

    @property
    def different_answers(self) -> tuple[int, ...]:
        """Indices of the calls whose answer differs from the reference server's."""
        return tuple(call.index for call in self.calls if call.same_answer is False)

    def as_json(self) -> dict[str, Any]:
        return {
            "trace": self.name,
            "requests": len(self.calls),
            "skipped": self.skipped,
            "prompt_tokens": self.prompt_tokens,
            "prefilled_tokens": self.prefilled_tokens,
            "oracle_tokens": self.oracle_tokens,
            "ratio": self.ratio,
            "peer": self.peer_name,
            "peer_prefilled_tokens": self.peer_prefilled_tokens,
            "peer_ratio": self.peer_ratio,
            "compared_answers": self.compared_answers,
            "different_answers": list(self.different_answers),
            "wall_seconds": self.wall_seconds,
            "settings": self.settings,
            "calls": [asdict(call) for call in self.calls],
        }


def replay_trace(
    trace: Trace,
    client: Client,
    *,
    reference: Client | None = None,
    reference_every: int = 1,
    peer: Peer | None = None,
    max_tokens: int = REPLY_TOKENS,
    limit: int | None = None,
    at_cuts: bool = False,
    progress: Callable[[CallRecord], None] = lambda record: None,
) -> ReplayReport:
    """Send the calls of ``trace`` in order, each after the reply to the one before.

    ``reference`` gets the same calls, or every so many of them, and must give the same reply ids; ``peer``
    gets the same prompt ids.
    With ``at_cuts`` the oracle, too, resumes only at cuts, as stateful models must.
    The server is taken to be empty at the start. Raises CallFailed for any refusal but a prompt that is too long.
    """
    started = time.monotonic()
    make_oracle = CutOracle if at_cuts else Oracle
    replay = _Replay(
        name=trace.name,
        client=client,
        reference=reference,
        reference_every=reference_every,
        peer=peer,
        max_tokens=max_tokens,
        oracle=make_oracle(),
        peer_oracle=make_oracle(),
    )
    records: list[CallRecord] = []
    skipped = 0
    for index, request in enumerate(trace.requests[:limit]):
        record = replay.call(index, capped(request.body, max_tokens=max_tokens))
        if record is None:
            skipped += 1
        else:
            records.append(record)
            progress(record)
    return ReplayReport(
        name=trace.name,
        calls=tuple(records),
        skipped=skipped,
        wall_seconds=time.monotonic() - started,
        peer_name=peer.name if peer is not None else None,
    )


def capped(body: dict[str, Any], *, max_tokens: int) -> dict[str, Any]:
    """``body`` as recorded, but greedy and with a short reply that comes as a whole."""
    dropped = ("max_completion_tokens", "stream", "stream_options")
    return {
        **{key: value for key, value in body.items() if key not in dropped},
        "max_tokens": max_tokens,
        "temperature": 0,
    }


@dataclass(slots=True, kw_only=True)
class _Replay:
    """One trace under way: who is asked, and what each side's perfect cache would hold by now."""

    name: str
    client: Client
    reference: Client | None
    reference_every: int
    peer: Peer | None
    max_tokens: int
    oracle: Oracle | CutOracle
    peer_oracle: Oracle | CutOracle

    def call(self, index: int, body: dict[str, Any]) -> CallRecord | None:
        """Send one call to everybody; None when its prompt does not fit into the context."""
        prompt, cuts = self.client.prompt(body)
        try:
            answer = self.client.chat(body)
        except CallFailed as error:
            if error.code != TOO_LONG:
                raise
            return None
        if answer.prompt_tokens != prompt.size:
            raise CallFailed(
                f"call {index} of {self.name}: /apply-template gives {prompt.size} tokens "
                f"and the call had {answer.prompt_tokens}",
                status=200,
            )
        oracle_tokens = self.oracle.cost(prompt, cuts)
        self.oracle.reply(prompt, answer.reply_tokens)
        beside = self._ask_peer(prompt, cuts)
        compared = self.reference is not None and (index + 1) % self.reference_every == 0
        same = _same(answer, self.reference.chat(body)) if self.reference is not None and compared else None
        return _record(index, answer, oracle_tokens, same, beside)

    def _ask_peer(self, prompt: Tokens, cuts: Sequence[int]) -> dict[str, int]:
        """What the peer prefilled for the same ids, and what its oracle would have; empty without a peer."""
        if self.peer is None:
            return {}
        oracle_tokens = self.peer_oracle.cost(prompt, cuts)
        other = self.peer.complete(prompt, max_tokens=self.max_tokens)
        self.peer_oracle.reply(prompt, other.reply_tokens)
        return {"peer_oracle_tokens": oracle_tokens, "peer_prefilled_tokens": other.prefilled_tokens}


def _same(answer: Answer, other: Answer) -> bool:
    return answer.text == other.text and answer.reply_tokens.tolist() == other.reply_tokens.tolist()


def _record(index: int, answer: Answer, oracle_tokens: int, same: bool | None, beside: dict[str, int]) -> CallRecord:
    return CallRecord(
        index=index,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        prefilled_tokens=answer.prefilled_tokens,
        oracle_tokens=oracle_tokens,
        plan=answer.timings.get("plan"),
        ttft_ms=answer.ttft_ms,
        same_answer=same,
        peer_prefilled_tokens=beside.get("peer_prefilled_tokens"),
        peer_oracle_tokens=beside.get("peer_oracle_tokens"),
    )
