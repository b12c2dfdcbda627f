"""Replays against live servers: the numbers agree with the oracle, and answers with a server without a cache."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from anchorline.bench import agent
from anchorline.bench.calls import capped
from anchorline.bench.client import CallFailed, Client
from anchorline.bench.peers import check_python
from anchorline.bench.process import start_anchorline
from anchorline.bench.replay import replay_trace
from anchorline.bench.report import CallRecord, ReplayReport
from anchorline.bench.trace import CHAT_PATH, Trace, chat_only, limited, mix, read_trace
from anchorline.cli.main import cli
from anchorline.cli.replay_started import EXACT_NOTE, table_of
from anchorline.errors import ConfigError
from tests.bench.conftest import SMALL
from tests.support.traces import body_of, trace_of

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
CHEAP_TOKENS = 32


@pytest.fixture(scope="module")
def session() -> Trace:
    """Two conversations on one head, taking turns, and a title call."""
    first = [agent.user("list the files"), agent.assistant("done"), agent.user("now read one")]
    second = [agent.user("run the tests"), agent.assistant("3 failed"), agent.user("which?")]
    bodies = [
        body_of(*first[:1]),
        body_of(agent.user("a title please"), tools=False),
        body_of(*second[:1]),
        body_of(*first),
        body_of(*second),
        body_of(*first),
    ]
    return trace_of("session", *bodies)


def test_the_server_prefills_what_the_oracle_says(session: Trace, client: Client) -> None:
    seen: list[int] = []
    report = replay_trace(session, client, progress=lambda record: seen.append(record.index))
    assert seen == list(range(6))
    assert report.skipped == 0
    assert report.oracle_tokens < report.prompt_tokens / 3
    assert report.calls[-1].oracle_tokens == 1
    for call in report.calls:
        # A few tokens may be prefilled again where that is quicker than a restore, as it is for a model this small.
        assert call.oracle_tokens <= call.prefilled_tokens <= call.oracle_tokens + CHEAP_TOKENS
    assert report.ratio is not None
    assert report.ratio >= 1.0


def test_answers_equal_those_without_a_cache(session: Trace) -> None:
    with (
        start_anchorline([*SMALL, "--exact"]) as cached,
        start_anchorline([*SMALL, "--exact", "--no-cache"]) as plain,
        Client(cached.wait_until_listening()) as client,
        Client(plain.wait_until_listening()) as reference,
    ):
        report = replay_trace(session, client, reference=reference)
    assert [call.same_answer for call in report.calls] == [True] * 6
    assert sum(call.cached_tokens for call in report.calls) > report.prompt_tokens / 2


def test_a_different_model_gives_different_answers(session: Trace, client: Client) -> None:
    """The comparison can fail: other weights are found out."""
    with start_anchorline([*SMALL, "--test-seed", "7"]) as other, Client(other.wait_until_listening()) as reference:
        report = replay_trace(session, client, reference=reference, reference_every=2)
    assert [call.same_answer is None for call in report.calls] == [True, False] * 3
    assert report.compared_answers == 3
    assert report.different_answers


def test_prompts_longer_than_the_context_are_skipped(session: Trace, client: Client) -> None:
    long = body_of(agent.user("x y " * 9000))
    report = replay_trace(trace_of("long", long, *(request.body for request in session.requests[:2]), long), client)
    assert (len(report.calls), report.skipped) == (2, 2)


def test_any_other_refusal_ends_the_replay(client: Client) -> None:
    with pytest.raises(CallFailed, match="HTTP 400"):
        replay_trace(trace_of("bad", {"messages": []}), client)


def test_capped_keeps_what_makes_the_prompt() -> None:
    body = {
        "messages": [1],
        "tools": [2],
        "tool_choice": "auto",
        "max_completion_tokens": 9,
        "stream": True,
        "top_k": 3,
    }
    assert capped(body, max_tokens=8) == {
        "messages": [1],
        "tools": [2],
        "tool_choice": "auto",
        "top_k": 3,
        "max_tokens": 8,
        "temperature": 0,
    }


def test_an_empty_replay_has_no_ratio() -> None:
    report = ReplayReport(name="none", calls=(), skipped=3, wall_seconds=0.0)
    assert report.ratio is None
    assert report.peer_ratio is None
    assert report.peer_prefilled_tokens is None


@pytest.mark.parametrize(("same_answer", "noted"), [(True, True), (None, False)])
def test_compared_answers_come_with_a_note_on_their_ratio(same_answer: bool | None, noted: bool) -> None:
    call = CallRecord(
        trace="session",
        index=0,
        prompt_tokens=9,
        cached_tokens=0,
        prefilled_tokens=9,
        oracle_tokens=9,
        plan=None,
        ttft_ms=None,
        same_answer=same_answer,
    )
    table = table_of([ReplayReport(name="session", calls=(call,), skipped=0, wall_seconds=0.0)])
    assert (table.caption == EXACT_NOTE) is noted


def test_the_command_judges_and_reports(session: Trace, tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    lines = [{"t": 0, "t_end": 0, "path": r.path, "body": r.body} for r in session.requests]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    model = ["--model", "test:llama", "--layers", "2", "--flash-attn", "off", "--ctx", "4096"]
    common = ["replay", str(path), *model, "--limit", "3", "--json", "--serve-args"]
    good = CliRunner().invoke(cli, [*common, "--cache-ram 64m"])
    assert good.exit_code == 0
    (report,) = json.loads(good.stdout)
    assert (report["trace"], report["requests"]) == ("session", 3)
    bad = CliRunner().invoke(cli, [*common, "--no-cache"])
    assert bad.exit_code == 1
    assert "times the oracle" in bad.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--peer", "llama-server", "--peer-python", "/no/such/python"), "--peer-python"),
        (("--layers", "5", "--model", "test:llama"), "has 4 layers; 5 cannot be kept"),
        (("--model", "/no/such.gguf"), "/no/such.gguf"),
        (("--model", "test:llama", "--ctx", "200000"), "--ctx"),
        (("--at-once", "--compare-no-cache"), "--compare-no-cache"),
    ],
)
def test_what_cannot_be_done_is_named(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"t": 0, "t_end": 0, "path": CHAT_PATH, "body": body_of(agent.user("hi"))}))
    result = CliRunner().invoke(cli, ["replay", str(path), "--ctx", "2048", *arguments])
    assert result.exit_code == 2
    assert named in result.stderr


def test_a_python_without_the_peer_is_refused() -> None:
    if importlib.util.find_spec("xllamacpp") is not None:
        pytest.skip("this Python has the peer")
    with pytest.raises(ConfigError, match="xllamacpp"):
        check_python(sys.executable)


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")
def test_recorded_agents_on_a_test_model() -> None:
    """The first calls of every recorded chat agent, taking turns on one server."""
    traces = [chat_only(read_trace(RECORDED / f"{n}.jsonl")) for n in ("hermes-fanout", "opencode", "pi", "langgraph")]
    arguments = ["test:llama", "--threads", "1", "--ctx", "65536", "--cache-ram", "256m", "--log-level", "warning"]
    arguments += ["--test-context", "65536"]
    with start_anchorline(arguments) as server, Client(server.wait_until_listening()) as client:
        report = replay_trace(limited(mix(traces), 10), client)
    assert report.skipped == 0
    assert report.ratio is not None
    assert report.ratio <= 1.02
