"""Commands that take recorded chat calls say what else a trace holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anchorline.cli.traces import read_chat_traces
from anchorline.errors import ConfigError


def _trace(folder: Path, *paths: str) -> Path:
    file = folder / "session.jsonl"
    lines = ({"t": 0.0, "t_end": 1.0, "path": path, "body": {"messages": []}} for path in paths)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_other_calls_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _trace(tmp_path, "/v1/chat/completions", "/v1/messages", "/v1/responses")

    (trace,) = read_chat_traces([file])

    assert [request.path for request in trace.requests] == ["/v1/chat/completions"]
    assert capsys.readouterr().err == "session: 2 of 3 calls left out: not chat completions\n"


def test_a_trace_without_chat_calls_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chat calls in: session"):
        read_chat_traces([_trace(tmp_path, "/v1/messages")])
