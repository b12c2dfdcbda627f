"""The mix as a workload: all calls of all members, in turns or overlapping as they were recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anchorline.bench import agent
from anchorline.bench.standing.recorded import MIX, as_recorded, one_after_another, read_mix
from anchorline.bench.trace import Trace, TraceRequest
from anchorline.errors import ConfigError
from tests.support.traces import body_of


def trace_of(name: str, *times: tuple[float, float]) -> Trace:
    """One call for each (arrival, end), in seconds."""
    requests = [
        TraceRequest(
            path="/v1/chat/completions", body=body_of(agent.user(f"{name} {n}")), arrival_seconds=t, end_seconds=e
        )
        for n, (t, e) in enumerate(times)
    ]
    return Trace(name=name, requests=tuple(requests))


MEMBERS = [trace_of("first", (0, 4), (5, 9), (6, 7), (10, 11)), trace_of("second", (0, 1), (2, 3))]


def test_members_take_turns() -> None:
    steps = one_after_another(MEMBERS)
    assert [step.calls[0].name for step in steps] == [
        "first 0",
        "second 0",
        "first 1",
        "second 1",
        "first 2",
        "first 3",
    ]
    body = steps[0].calls[0].body
    assert (body["max_tokens"], body["temperature"], "stream" in body) == (8, 0, False)


def test_recorded_calls_wait_for_what_had_been_answered_and_for_no_other_member() -> None:
    (step,) = as_recorded(MEMBERS)
    assert [(call.name, call.after) for call in step.calls] == [
        ("first 0", ()),
        ("first 1", (0,)),
        ("first 2", (0,)),
        ("first 3", (0, 1, 2)),
        ("second 0", ()),
        ("second 1", (4,)),
    ]


def write(folder: Path, *names: str) -> None:
    for name in names:
        trace = trace_of(name, (0, 1), (2, 3), (4, 5))
        lines = [
            json.dumps({"t": r.arrival_seconds, "t_end": r.end_seconds, "path": r.path, "body": r.body})
            for r in trace.requests
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))


def test_the_first_trace_brings_a_second_session(tmp_path: Path) -> None:
    write(tmp_path, *MIX)
    members = read_mix(tmp_path)
    assert [member.name for member in members] == [*MIX[:2], f"{MIX[0]}-second", *MIX[2:]]
    assert [len(member.requests) for member in members] == [3] * 6


def test_a_folder_without_some_of_them_is_refused_by_their_names(tmp_path: Path) -> None:
    write(tmp_path, *MIX[:3])
    with pytest.raises(ConfigError, match=r"has no pi\.jsonl, langgraph\.jsonl"):
        read_mix(tmp_path)
