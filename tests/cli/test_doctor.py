"""``anchorline doctor`` on the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from anchorline.bench.process import ServerProcess
from anchorline.bench.trace import CHAT_PATH, read_trace
from anchorline.cli.doctor_live import Teller
from anchorline.cli.main import cli
from anchorline.config import ServerConfig
from anchorline.doctor.comparison import Kind
from anchorline.doctor.layout import ToolOrder
from anchorline.doctor.live import LiveDiagnosis
from anchorline.doctor.requests import read_request
from anchorline.doctor.wording import REMEDIES, TITLES
from anchorline.llama.model import Model
from anchorline.record.recorder import RecordedCall, Recorder
from tests.doctor.traffic import Body, clean, clock_in_system, side_call
from tests.record.upstream import Upstream
from tests.server.support import free_port, listening

DOCS = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()


def write(path: Path, bodies: list[Body], *, endpoint: str = CHAT_PATH) -> Path:
    lines = [{"t": place, "t_end": place, "path": endpoint, "body": body} for place, body in enumerate(bodies)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """A conversation with a clock in its system prompt, and a side call."""
    bodies = clean()
    clock_in_system(bodies)
    side_call(bodies)
    return write(tmp_path / "spoiled.jsonl", bodies)


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["doctor", *map(str, arguments)])


def report(*arguments: object) -> list[dict[str, Any]]:
    result = doctor("--json", *arguments)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.output)
    return found


def test_a_person_is_told_where_what_and_the_remedy(spoiled: Path) -> None:
    result = doctor("--no-model", spoiled)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "about 4 bytes a token" in said
    assert "Requests 2, 3, 4, 5 and 6: the system prompt (message 0, line 2, byte 31) holds a clock: “14:00:11”" in said
    assert REMEDIES[Kind.CLOCK] in said


def test_json_has_every_occurrence(spoiled: Path) -> None:
    ((clock, side),) = [each["findings"] for each in report("--no-model", spoiled)]
    assert (clock["kind"], clock["times"], side["kind"]) == ("clock", 5, "side-call")
    first = clock["occurrences"][0]
    assert (first["request"], first["earlier"], first["before"], first["after"]) == (2, 0, "14:00:11", "14:01:11")
    assert first["place"] == {"part": 0, "role": "system", "field": "content", "line": 2, "byte": 31}
    assert sum(each["lost_tokens"] for each in clock["occurrences"]) == clock["lost_tokens"] > 0


def test_tokens_are_those_of_the_model(spoiled: Path, test_llama_model: Model) -> None:
    (by_model,), (by_bytes,) = report("--model", "test:llama", spoiled), report("--no-model", spoiled)
    requests = [read_request(recorded, place) for place, recorded in enumerate(read_trace(spoiled).requests)]
    texts = [tool.text for request in requests for tool in request.tools]
    texts += [message.text for request in requests for message in request.messages]
    counted = sum(test_llama_model.tokenizer.tokenize(text).size for text in texts)
    assert by_model["prompt_tokens"] == counted != by_bytes["prompt_tokens"]
    assert by_model["counting"] == (
        "counted with test:llama, tools first, template default (model file: its own); tools as in chatml"
    )
    assert [each["kind"] for each in by_model["findings"]] == [each["kind"] for each in by_bytes["findings"]]


def test_a_clean_trace_is_called_clean(tmp_path: Path) -> None:
    result = doctor("--no-model", "--fail-on-findings", write(tmp_path / "clean.jsonl", clean()))
    assert result.exit_code == 0
    assert "Nothing was found" in result.output


def test_findings_fail_only_when_asked_to(spoiled: Path) -> None:
    assert doctor("--no-model", spoiled).exit_code == 0
    assert doctor("--no-model", "--fail-on-findings", spoiled).exit_code == 1


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    path = write(tmp_path / "other.jsonl", [{"input": "x"}], endpoint="/v1/embeddings")
    (found,) = report("--no-model", path)
    assert found["unread"] == [{"request": 0, "reason": "/v1/embeddings is no chat call"}]
    assert "Request 0 was left out: /v1/embeddings is no chat call" in doctor("--no-model", path).output


def test_what_a_rewrite_would_spare_is_said(spoiled: Path) -> None:
    (found,) = report("--no-model", spoiled)
    saved = {saving["flag"]: saving["tokens"] for saving in found["savings"]}
    assert saved["--float-volatile"] > 0
    said = " ".join(doctor("--no-model", spoiled).output.split())
    assert f"With --float-volatile a server would prefill {saved['--float-volatile']:,} tokens less" in said


def test_live_findings_are_told_as_they_come_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bodies = clean()[:3]
    clock_in_system(bodies)
    with listening(Upstream().app, ServerConfig(port=0)) as upstream:
        said = live(upstream, [(CHAT_PATH, body) for body in bodies] + [("/v1/completions", {"prompt": "x"})])
    assert "Request 1: the system prompt (message 0, line 2, byte 31) holds a clock: “14:00:11” became" in said
    assert said.count(REMEDIES[Kind.CLOCK]) == 1
    assert said.index("Request 2: the system prompt") < said.index("3 calls read")
    assert "1 call left out: the doctor cannot read it" in said
    assert re.search(r"1 a clock in the prompt +2 ", said)
    assert list(tmp_path.iterdir()) == []


ACTING = "f\x1b[2J\x1b]0;owned\x07\u202e"
"""A name that clears a terminal, renames it and writes backwards."""


def acting() -> list[Body]:
    """A conversation in which a tool with such a name is described anew."""
    bodies = clean()
    for place, each in enumerate(bodies):
        each["tools"] = [{"type": "function", "function": {"name": ACTING, "description": f"{ACTING} {place}"}}]
    return bodies


def test_nothing_of_the_traffic_acts_on_the_terminal(tmp_path: Path) -> None:
    trace = write(tmp_path / "acting.jsonl", acting())
    said = doctor("--no-model", trace).output
    assert "the tool f\N{REPLACEMENT CHARACTER}[2J" in said
    data = doctor("--no-model", "--json", trace).output
    assert "f\\u001b[2J" in data
    assert all(line.isprintable() for line in f"{said}{data}".split("\n"))


def test_nothing_of_live_traffic_acts_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(LiveDiagnosis(count_tokens=len, order=ToolOrder.FIRST))
    for place, each in enumerate([*acting(), {"messages": [{"role": f"{ACTING}\ud800"}]}]):
        teller.take(RecordedCall(path=CHAT_PATH, body=each, arrival_seconds=place, end_seconds=place))
    said = capsys.readouterr().out
    assert "the tool f\N{REPLACEMENT CHARACTER}[2J" in said
    assert "A call was left out" in said
    assert all(line.isprintable() for line in said.split("\n"))


def test_at_the_end_what_is_not_read_yet_is_dropped_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    reading, goes_on = threading.Event(), threading.Event()

    def count(_: str) -> int:
        reading.set()
        goes_on.wait()
        return 1

    teller = Teller(LiveDiagnosis(count_tokens=count, order=ToolOrder.FIRST))
    recorder = Recorder(teller.take, clock=lambda: 0.0)
    bodies = clean()[:3]
    clock_in_system(bodies)
    for each in bodies:
        recorder.end(recorder.begin(CHAT_PATH, json.dumps(each).encode()))
    reading.wait()
    teller.sum_up(recorder, through=recorder.close(patience_seconds=0))
    said = capsys.readouterr().out
    goes_on.set()
    recorder.close()
    assert "1 call read\n2 calls left out: the end came first\nThere are no sums" in said


def live(upstream: str, calls: list[tuple[str, Body]]) -> str:
    """What ``doctor --live`` in front of a server said by the time that it was interrupted, on one line."""
    command = [sys.executable, "-m", "anchorline", "doctor", "--no-model", "--live", upstream, "--port", "0"]
    with ServerProcess(["sh", "-c", 'exec "$0" "$@" 1>&2', *command], kept_lines=1000) as process:
        url = process.wait_until_listening()
        for path, body in calls:
            httpx.post(url + path, json=body)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 0
        return " ".join("\n".join(process.lines).split())


@pytest.mark.parametrize("also", [["--json"], ["--fail-on-findings"], ["a trace"]])
def test_live_goes_with_nothing_that_is_for_traces(spoiled: Path, also: list[str]) -> None:
    result = doctor("--live", "http://127.0.0.1:1", *(str(spoiled) if each == "a trace" else each for each in also))
    assert result.exit_code == 2
    assert "--live goes with neither" in result.output


def test_something_has_to_be_read() -> None:
    result = doctor()
    assert result.exit_code == 2
    assert "TRACE" in result.output


def test_live_in_front_of_itself_is_refused() -> None:
    port = free_port()
    result = doctor("--no-model", "--live", f"http://127.0.0.1:{port}", "--port", port)
    assert result.exit_code == 2
    assert "--live" in result.output
    assert "itself listens" in result.output


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text("{}\n")
    result = doctor("--no-model", path)
    assert result.exit_code == 2
    assert "broken.jsonl, line 1" in result.output


def test_a_model_and_none_exclude_each_other(spoiled: Path) -> None:
    result = doctor("--no-model", "--model", "test:llama", spoiled)
    assert result.exit_code == 2
    assert "--model and --no-model exclude each other" in result.output


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_described(kind: Kind) -> None:
    assert f"`{kind}`" in DOCS
    assert TITLES[kind]
    assert REMEDIES[kind]


def test_every_flag_is_described() -> None:
    for flag in ("--model", "--no-model", "--json", "--fail-on-findings", "--live", "--port"):
        assert f"`{flag}" in DOCS
