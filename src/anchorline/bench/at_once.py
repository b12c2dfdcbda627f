"""Replays several chat traces side by side against one live server, as agents do that share a machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TypeVar

from anchorline.bench.calls import REPLY_TOKENS, MeasuredCall, MeasuredPeer, MeasuredServer, Peer, gaps_seconds
from anchorline.bench.client import Client
from anchorline.bench.live.schedule import AT_ONCE
from anchorline.bench.oracle import SharedOracle
from anchorline.bench.report import CallRecord, ReplayReport
from anchorline.bench.trace import Trace

Item = TypeVar("Item")


def replay_at_once(
    traces: Sequence[Trace],
    url: str,
    *,
    name: str,
    peer: Peer | None = None,
    max_tokens: int = REPLY_TOKENS,
    at_cuts: bool = False,
    pace: float = AT_ONCE,
    progress: Callable[[CallRecord], None] = lambda record: None,
) -> ReplayReport:
    """Send all ``traces`` to the server at ``url`` at the same time, the calls of each one after the other.

    Between two of them passes what passed when they were recorded, divided by ``pace``.

    One thread and one client per trace. ``peer`` gets the same prompt ids in the same way, once the server has
    answered everything. ``progress`` is called by these threads.
    With ``at_cuts`` the oracle, too, resumes only at cuts, as stateful models must.
    The server is taken to be empty at the start. Raises CallFailed for any refusal; the other threads then end
    after the call that they are at.
    """
    started = time.monotonic()
    oracle = SharedOracle(at_cuts=at_cuts)

    def answered(trace: Trace) -> Iterator[MeasuredCall]:
        with Client(url) as client:
            for call in MeasuredServer(client=client, oracle=oracle, max_tokens=max_tokens).replay(trace, pace=pace):
                progress(call.record())
                yield call

    calls = side_by_side([answered(trace) for trace in traces])
    if peer is None:
        records = [[call.record() for call in lane] for lane in calls]
    else:
        beside = MeasuredPeer(peer=peer, oracle=SharedOracle(at_cuts=at_cuts), max_tokens=max_tokens)
        records = side_by_side(
            [
                _repeated(lane, gaps_seconds(trace, pace), beside, progress)
                for trace, lane in zip(traces, calls, strict=True)
            ]
        )
    return ReplayReport(
        name=name,
        calls=tuple(record for lane in records for record in lane),
        skipped=sum(len(trace.requests) for trace in traces) - sum(len(lane) for lane in records),
        wall_seconds=time.monotonic() - started,
        peer_name=peer.name if peer is not None else None,
    )


def _repeated(
    calls: Sequence[MeasuredCall],
    gaps: Sequence[float],
    beside: MeasuredPeer,
    progress: Callable[[CallRecord], None],
) -> Iterator[CallRecord]:
    """Send ``calls`` to the peer, each after the reply to the one before and its gap, of those by place."""
    for call in calls:
        time.sleep(gaps[call.index])
        record = call.record(beside=beside.complete(call))
        progress(record)
        yield record


def side_by_side(lanes: Sequence[Iterator[Item]]) -> list[list[Item]]:
    """What each of ``lanes`` yields; each runs in a thread of its own. Raises what the first to fail raised."""
    stopped = Event()

    def run(lane: Iterator[Item]) -> list[Item]:
        items = []
        for item in lane:
            items.append(item)
            if stopped.is_set():
                break
        return items

    with ThreadPoolExecutor(max_workers=len(lanes)) as pool:
        running = [pool.submit(run, lane) for lane in lanes]
        try:
            for ended in as_completed(running):
                ended.result()
        finally:
            stopped.set()
    return [ended.result() for ended in running]
