"""Replays a chat trace against a live server, call by call, and holds its prefilled tokens against the oracle."""

from __future__ import annotations

import time
from collections.abc import Callable

from anchorline.bench.calls import REPLY_TOKENS, MeasuredPeer, MeasuredServer, Peer
from anchorline.bench.client import Answer, Client
from anchorline.bench.oracle import SharedOracle
from anchorline.bench.report import CallRecord, ReplayReport
from anchorline.bench.trace import Trace


def replay_trace(
    trace: Trace,
    client: Client,
    *,
    reference: Client | None = None,
    reference_every: int = 1,
    peer: Peer | None = None,
    max_tokens: int = REPLY_TOKENS,
    at_cuts: bool = False,
    progress: Callable[[CallRecord], None] = lambda record: None,
) -> ReplayReport:
    """Send the calls of ``trace`` in order, each after the reply to the one before.

    ``reference`` gets the same calls, or every so many of them, and must give the same reply ids; ``peer``
    gets the same prompt ids.
    With ``at_cuts`` the oracle, too, resumes only at cuts, as stateful models must.
    The server is taken to be empty at the start. Raises CallFailed for any refusal.
    """
    started = time.monotonic()
    server = MeasuredServer(client=client, oracle=SharedOracle(at_cuts=at_cuts), max_tokens=max_tokens)
    beside = None
    if peer is not None:
        beside = MeasuredPeer(peer=peer, oracle=SharedOracle(at_cuts=at_cuts), max_tokens=max_tokens)
    records: list[CallRecord] = []
    for call in server.replay(trace):
        same = None
        if reference is not None and (call.index + 1) % reference_every == 0:
            same = _same(call.answer, reference.chat(call.body))
        record = call.record(same_answer=same, beside=beside.complete(call) if beside is not None else None)
        records.append(record)
        progress(record)
    return ReplayReport(
        name=trace.name,
        calls=tuple(records),
        skipped=len(trace.requests) - len(records),
        wall_seconds=time.monotonic() - started,
        peer_name=peer.name if peer is not None else None,
    )


def _same(answer: Answer, other: Answer) -> bool:
    return answer.text == other.text and answer.reply_tokens.tolist() == other.reply_tokens.tolist()
