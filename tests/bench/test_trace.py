"""Reading traces in both encodings, and mixing them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anchorline.bench.trace import CHAT_PATH, Trace, TraceRequest, chat_only, mix, read_trace, second_session
from anchorline.errors import ConfigError

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
needs_recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def write(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def trace_of(name: str, *texts: str) -> Trace:
    requests = tuple(
        TraceRequest(path=CHAT_PATH, body={"messages": [message("user", text)]}, arrival_seconds=0.0, end_seconds=0.0)
        for text in texts
    )
    return Trace(name=name, requests=requests)


def texts_of(trace: Trace) -> list[str]:
    return [request.body["messages"][0]["content"] for request in trace.requests]


def test_plain_lines_are_read_as_they_are(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [message("user", "hé")], "tools": [{"type": "function"}]}
    path = write(tmp_path / "a.jsonl", {"t": 1.5, "t_end": 2.0, "path": CHAT_PATH, "body": body})
    trace = read_trace(path)
    assert trace.name == "a"
    assert trace.requests == (TraceRequest(path=CHAT_PATH, body=body, arrival_seconds=1.5, end_seconds=2.0),)


def test_delta_lines_build_on_an_earlier_request(tmp_path: Path) -> None:
    one, two, three = message("user", "1"), message("assistant", "2"), message("user", "3")
    line = {"t": 0, "t_end": 1, "path": CHAT_PATH, "body": {"max_tokens": 5}}
    path = write(
        tmp_path / "long.delta.jsonl",
        {"tools_def": 0, "tools": ["first"]},
        {**line, "tools_ref": 0, "base": None, "keep": 0, "add": [one, two]},
        {"tools_def": 1, "tools": ["second"]},
        {**line, "tools_ref": 1, "base": 0, "keep": 1, "add": [three]},
        {**line, "tools_ref": None, "base": 0, "keep": 2, "add": []},
    )
    trace = read_trace(path)
    assert trace.name == "long"
    assert [r.body["messages"] for r in trace.requests] == [[one, two], [one, three], [one, two]]
    assert [r.body.get("tools") for r in trace.requests] == [["first"], ["second"], None]
    assert all(r.body["max_tokens"] == 5 for r in trace.requests)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"t":0,"t_end":0,"path":"/","body":{},"base":3,"keep":0,"add":[]}',
        '"text"',
        '{"t":0,"t_end":0,"path":3,"body":{}}',
        '{"t":NaN,"t_end":0,"path":"/","body":{}}',
        '{"t":0,"t_end":1' + "0" * 400 + ',"path":"/","body":{}}',
        "[" * 100_000,
        '{"t":0,"t_end":1e300,"path":"/","body":{}}',
        '{"t":0,"t_end":0,"path":"/","body":{"temperature":NaN}}',
        '{"t":0,"t_end":0,"path":"/","body":{"temperature":1e999}}',
        '{"t":0,"t_end":0,"path":"/","body":{"input":"\\ud800"}}',
        '{"t":0,"t_end":0,"path":"/","body":{"input":' + "[" * 900 + "]" * 900 + "}}",
        '{"tools_def":0,"tools":["\\udfff"]}',
    ],
    ids=str.__len__,
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    assert_refused(tmp_path, line)


@pytest.mark.parametrize(
    "path",
    [
        "http://127.0.0.1:1/v1/chat/completions",
        "//127.0.0.1:1/v1/chat/completions",
        "v1/chat/completions",
        "",
        "/v1/x/../chat/completions",
        "/v1/./chat/completions",
        "/v1/%2E%2e/chat/completions",
        "/v1/chat/completions/..",
        "/v1/chat/completions#part",
        "/\\127.0.0.1:1/v1/chat/completions",
        "/v1/chat/completions\n",
        "/v1/chat/completions\x7f",
        "/v1/chat/\ud800completions",
        " /v1/chat/completions",
    ],
    ids=ascii,
)
def test_a_path_that_could_lead_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    assert_refused(tmp_path, json.dumps({"t": 0, "t_end": 0, "path": path, "body": {}}))


@pytest.mark.parametrize("path", ["/", "/v1/messages?beta=true", "/a..b/.c/v1/responses", "/v1/models/a%2Fb?x=../"])
def test_any_other_path_is_read(tmp_path: Path, path: str) -> None:
    file = write(tmp_path / "good.jsonl", {"t": 0, "t_end": 0, "path": path, "body": {}})
    assert [request.path for request in read_trace(file).requests] == [path]


def assert_refused(folder: Path, line: str) -> None:
    """Names the second line of its trace."""
    path = folder / "bad.jsonl"
    path.write_text("\n" + line + "\n")
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 2"):
        read_trace(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        read_trace(tmp_path / "none.jsonl")


def test_only_chat_calls_are_kept() -> None:
    other = TraceRequest(path="/v1/responses", body={}, arrival_seconds=0.0, end_seconds=0.0)
    trace = trace_of("t", "a")
    assert chat_only(Trace(name="t", requests=(other, *trace.requests, other))) == trace


def test_mix_takes_turns_and_adds_a_second_session() -> None:
    mixed = mix([trace_of("a", "a1", "a2", "a3"), trace_of("b", "b1"), trace_of("c", "c1", "c2")])
    assert texts_of(mixed) == [
        *("a1", "b1", "Second session. 1a", "c1"),
        *("a2", "Second session. 2a", "c2"),
        *("a3", "Second session. 3a"),
    ]


def test_second_session_leaves_the_first_alone() -> None:
    first = trace_of("a", "text")
    assert texts_of(second_session(first)) == ["Second session. txet"]
    assert texts_of(first) == ["text"]


@needs_recorded
def test_mix_equals_the_script_beside_the_traces(tmp_path: Path) -> None:
    target = tmp_path / "mix.jsonl"
    subprocess.run([sys.executable, RECORDED / "make_mix.py", RECORDED, target], check=True, capture_output=True)
    names = ("hermes-fanout", "opencode", "cline", "pi", "langgraph")
    mixed = mix([chat_only(read_trace(RECORDED / f"{name}.jsonl")) for name in names])
    assert [r.body for r in mixed.requests] == [r.body for r in read_trace(target).requests]


@needs_recorded
@pytest.mark.parametrize(
    ("name", "count"),
    [("hermes-fanout", 29), ("hermes-long.delta", 151), ("opencode", 11), ("cline", 11), ("pi", 8), ("langgraph", 7)],
)
def test_recorded_chat_traces_are_read_whole(name: str, count: int) -> None:
    trace = chat_only(read_trace(RECORDED / f"{name}.jsonl"))
    assert len(trace.requests) == count
    assert all(request.body["messages"] for request in trace.requests)
