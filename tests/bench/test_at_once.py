"""Traces replayed at the same time: nobody waits for another trace, and all of them share one perfect cache."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Barrier, Lock

import numpy as np
import pytest
from click.testing import CliRunner

from anchorline.bench import agent
from anchorline.bench.at_once import replay_at_once, side_by_side
from anchorline.bench.calls import PeerAnswer, gaps_seconds
from anchorline.bench.client import CallFailed, Client
from anchorline.bench.oracle import Tokens
from anchorline.bench.process import start_anchorline
from anchorline.bench.trace import CHAT_PATH, Trace, TraceRequest, chat_only, limited, mix_members, read_trace
from anchorline.cli.main import cli
from tests.support.traces import body_of, trace_of

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
WAIT_SECONDS = 60.0


class Together:
    """A peer without a cache that answers only when a call of every trace has come."""

    name = "together"

    def __init__(self, traces: int) -> None:
        self._barrier = Barrier(traces)
        self._lock = Lock()
        self.prompts: list[list[int]] = []

    def complete(self, prompt: Tokens, *, max_tokens: int) -> PeerAnswer:
        with self._lock:
            self.prompts.append(prompt.tolist())
        self._barrier.wait(WAIT_SECONDS)
        return PeerAnswer(
            prompt_tokens=prompt.size, prefilled_tokens=prompt.size, reply_tokens=np.zeros(max_tokens, np.int32)
        )


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """Three conversations of two calls each on one head."""
    return [
        trace_of(
            name, body_of(agent.user(name)), body_of(agent.user(name), agent.assistant("done"), agent.user("go on"))
        )
        for name in ("list the files", "run the tests", "tidy up")
    ]


def test_each_trace_keeps_its_order_and_all_share_one_perfect_cache(traces: list[Trace], client: Client) -> None:
    report = replay_at_once(traces, client.url, name="all")
    assert [(call.trace, call.index) for call in report.calls] == [(t.name, i) for t in traces for i in range(2)]
    assert (report.name, report.skipped) == ("all", 0)
    head = client.prompt(body_of(agent.user("anything")))[1][0]
    assert head < report.oracle_tokens < 1.5 * head
    # So short a head is sooner prefilled by each than waited for, so nothing is said of how much more it may be.
    assert report.oracle_tokens <= report.prefilled_tokens < report.prompt_tokens


def test_the_peer_gets_the_same_prompts_side_by_side(traces: list[Trace], client: Client) -> None:
    """It answers only calls that come together, so one trace after the other would never end."""
    peer = Together(len(traces))
    report = replay_at_once(traces, client.url, name="all", peer=peer)
    sent = [client.prompt_tokens(request.body).tolist() for trace in traces for request in trace.requests]
    assert sorted(peer.prompts) == sorted(sent)
    assert report.peer_name == "together"
    assert report.peer_prefilled_tokens == report.prompt_tokens


def test_between_calls_passes_what_passed_when_they_were_recorded(client: Client) -> None:
    body = body_of(agent.user("wait"))
    times = ((0.0, 1.0), (3.0, 4.0), (4.5, 5.0))
    requests = tuple(
        TraceRequest(path=CHAT_PATH, body=body, arrival_seconds=start, end_seconds=end) for start, end in times
    )
    trace = Trace(name="slow", requests=requests)
    assert gaps_seconds(trace, 1.0) == [0.0, 2.0, 0.5]
    assert gaps_seconds(trace, 10.0) == [0.0, 0.2, 0.05]
    assert gaps_seconds(trace, math.inf) == [0.0, 0.0, 0.0]
    assert replay_at_once([trace], client.url, name="slow", pace=1.0).wall_seconds >= 2.5


def test_a_prompt_that_two_traces_send_at_once_costs_once(client: Client) -> None:
    """Both are sent before either has a reply: one of them costs nothing but its last token."""
    body = body_of(agent.user("list the files"))
    report = replay_at_once(
        [trace_of("first", body), trace_of("second", body)], client.url, name="all", peer=Together(2)
    )
    costs = [call.peer_oracle_tokens for call in report.calls]
    assert sorted(cost for cost in costs if cost is not None) == [1, report.calls[0].prompt_tokens]


def test_calls_that_do_not_fit_are_skipped_in_each_trace(traces: list[Trace], client: Client) -> None:
    long = body_of(agent.user("x y " * 9000))
    report = replay_at_once([traces[0], trace_of("long", long, long)], client.url, name="all")
    assert (len(report.calls), report.skipped) == (2, 2)


def test_a_refusal_ends_the_replay(traces: list[Trace], client: Client) -> None:
    with pytest.raises(CallFailed, match="HTTP 400"):
        replay_at_once([*traces, trace_of("bad", {"messages": []})], client.url, name="all")


def test_what_fails_ends_the_others() -> None:
    """The other lane never ends by itself."""

    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        side_by_side([count(), failing()])


def test_the_command_reports_all_traces_as_one(traces: list[Trace], tmp_path: Path) -> None:
    paths = []
    for trace in traces:
        path = tmp_path / f"{trace.name}.jsonl"
        lines = [{"t": 0, "t_end": 0, "path": r.path, "body": r.body} for r in trace.requests]
        path.write_text("\n".join(json.dumps(line) for line in lines))
        paths.append(str(path))
    options = ["--at-once", "--model", "test:llama", "--ctx", "4096", "--limit", "1", "--json"]
    result = CliRunner().invoke(cli, ["replay", *paths, *options, "--max-ratio", "10"])
    assert result.exit_code == 0, result.stderr
    (report,) = json.loads(result.stdout)
    assert (report["trace"], report["requests"]) == ("all", 3)
    assert {call["trace"] for call in report["calls"]} == {trace.name for trace in traces}


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")
def test_recorded_agents_at_once_on_a_test_model() -> None:
    """The first calls of recorded agents, two of which share 7K tokens, at the same time on one server.

    A head that takes a few milliseconds is not waited for: a quick machine may prefill small ones twice.
    """
    recorded = [chat_only(read_trace(RECORDED / f"{name}.jsonl")) for name in ("opencode", "pi", "langgraph")]
    members = [limited(member, 2) for member in mix_members(recorded)]
    arguments = ["test:llama", "--threads", "1", "--ctx", "32768", "--test-context", "32768", "--log-level", "warning"]
    with start_anchorline([*arguments, "--cache-ram", "256m", "--parallel", "4"]) as server:
        report = replay_at_once(members, server.wait_until_listening(), name="mix")
    assert len(report.calls) == 8
    assert report.prefilled_tokens - report.oracle_tokens < 2000
