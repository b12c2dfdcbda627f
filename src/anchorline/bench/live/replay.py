"""Replays traces against a running server: warms it up, carries out the plan of calls, then asks the oracle."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anchorline.bench.client import CallFailed, Client, Unreachable
from anchorline.bench.live.call import Measured
from anchorline.bench.live.perfect import AnchorlineIds, AnsweredCall, LlamaServerIds, perfect_costs
from anchorline.bench.live.protocols import why_left_out
from anchorline.bench.live.report import LiveCall, LiveReport
from anchorline.bench.live.schedule import PlannedCall, plan_calls
from anchorline.bench.live.sender import Sender, known_protocol
from anchorline.bench.runner import Done, run_plan
from anchorline.bench.trace import Trace

Refusal = CallFailed | Unreachable
Outcome = Measured | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaying:
    """How calls are sent."""

    pace: float
    """Times as fast as recorded; infinite to wait for nothing but replies."""
    concurrency: int
    """Most calls under way at the same time."""
    overlapping: bool
    """Whether calls of a trace that overlapped when they were recorded may overlap again."""
    warm_up: int
    """Calls that are sent before any is measured."""
    salt: str | None
    model: str | None
    max_tokens: int
    at_cuts: bool
    """Whether the oracle, too, resumes only at cuts."""


def replayable(trace: Trace) -> tuple[Trace, dict[int, str]]:
    """The calls of ``trace`` that can be sent again, and why not the others, by their places in it."""
    reasons = [why_left_out(request.path, request.body) for request in trace.requests]
    kept = (request for request, reason in zip(trace.requests, reasons, strict=True) if reason is None)
    left_out = {place: reason for place, reason in enumerate(reasons) if reason is not None}
    return Trace(name=trace.name, requests=tuple(kept)), left_out


def replay_live(
    traces: Sequence[Trace],
    client: Client,
    ids: AnchorlineIds | LlamaServerIds | None,
    *,
    name: str,
    how: Replaying,
    api_key: str | None = None,
    progress: Callable[[PlannedCall], None] = lambda call: None,
) -> LiveReport:
    """Send the calls of ``traces``, all of them ``replayable``, side by side; the report is about all of them.

    ``ids`` asks ``client`` for token ids, where it tells them. Calls that the server refuses, or does not answer, are
    in the report, and so is nothing that would give the API key away. ``progress`` is told of each call that has
    ended, by several threads.
    """
    sender = Sender(
        client=client,
        model=how.model,
        max_tokens=how.max_tokens,
        salt=how.salt,
        api_key=api_key,
        wants_reply_ids=ids is not None and ids.tells_replies,
    )
    warm_ups = sender.warm_up([request for trace in traces for request in trace.requests], how.warm_up)
    plan = plan_calls(traces, pace=how.pace, overlapping=how.overlapping)
    started = time.monotonic()
    ended = run_plan(plan, lambda place: _outcome(plan[place], sender, progress), concurrency=how.concurrency)
    wall_seconds = time.monotonic() - started
    answered = {place: call for place, done in enumerate(ended) if (call := _answered(plan[place], done, sender))}
    kind, costs = perfect_costs([*warm_ups, *answered.values()], ids, at_cuts=how.at_cuts)
    oracle_tokens = dict(zip(answered, costs[len(warm_ups) :], strict=True))
    calls = [
        _live_call(planned, done, oracle_tokens.get(place))
        for place, (planned, done) in enumerate(zip(plan, ended, strict=True))
    ]
    return LiveReport(
        name=name,
        url=client.url,
        calls=tuple(calls),
        wall_seconds=wall_seconds,
        oracle=kind,
        settings={**dataclasses.asdict(how), "model": client.masked(how.model)},
    )


def _outcome(planned: PlannedCall, sender: Sender, progress: Callable[[PlannedCall], None]) -> Outcome:
    try:
        return sender.send(planned.request)
    except (CallFailed, Unreachable) as error:
        return error
    finally:
        progress(planned)


def _answered(planned: PlannedCall, done: Done[Outcome], sender: Sender) -> AnsweredCall | None:
    if not isinstance(done.result, Measured):
        return None
    return AnsweredCall(
        protocol=known_protocol(planned.request),
        body=sender.body(planned.request, salt=sender.salt),
        measured=done.result,
        sent_seconds=done.sent_seconds,
        ended_seconds=done.ended_seconds,
    )


def _live_call(planned: PlannedCall, done: Done[Outcome], oracle_tokens: int | None) -> LiveCall:
    outcome = done.result
    return LiveCall(
        trace=planned.trace,
        index=planned.index,
        path=planned.request.path,
        sent_seconds=done.sent_seconds,
        late_seconds=done.late_seconds,
        measured=outcome if isinstance(outcome, Measured) else None,
        error=str(outcome) if isinstance(outcome, Refusal) else None,
        oracle_tokens=oracle_tokens,
    )
