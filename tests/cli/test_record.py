"""The record command in a process of its own: ready, stopped in order, and refused."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from anchorline.bench.process import ServerProcess
from anchorline.bench.trace import read_trace
from anchorline.cli.main import cli
from anchorline.cli.record import RECORDING, SERVER
from anchorline.config import ServerConfig
from tests.record.upstream import Upstream
from tests.server.support import free_port, listening

PAGE = (Path(__file__).parents[2] / "docs" / "record.md").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_what_was_written(tmp_path: Path, number: signal.Signals) -> None:
    trace = tmp_path / "trace.jsonl"
    with listening(Upstream().app, ServerConfig(port=0)) as upstream:
        command = [sys.executable, "-m", "anchorline", "record", "--upstream", upstream, "--out", str(trace)]
        with ServerProcess([*command, "--port", "0"]) as process:
            url = process.wait_until_listening()
            assert url.startswith("http://127.0.0.1:")
            for text in ("a", "refuse"):
                httpx.post(f"{url}/v1/completions", json={"prompt": text})
            os.kill(process.pid, number)
            assert process.wait() == 0
    assert len(read_trace(trace).requests) == 1
    said = "\n".join(process.lines)
    assert f"1 call written to {trace} (" in said
    assert "1 call left out: the upstream refused the call with status 429" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--upstream", "nowhere", "--out", "a.jsonl"], "--upstream"),
        (["--upstream", "http://127.0.0.1:1", "--out", "none/a.jsonl"], "--out"),
        (["--upstream", "http://127.0.0.1:1"], "--out"),
        (["--upstream", "http://127.0.0.1:1", "--out", "a.jsonl", "--max-bytes", "1"], "--max-bytes"),
    ],
)
def test_what_cannot_be_done_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["record", "--port", "0", *arguments])
    assert result.exit_code == 2
    assert named in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_recording_of_itself_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    out, port = tmp_path / "trace.jsonl", free_port()
    arguments = ["record", "--upstream", f"http://localhost:{port}/v1", "--port", str(port), "--out", str(out)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert f"--upstream http://localhost:{port}/ is where this command itself listens" in result.output
    assert not out.exists()


def test_every_option_is_documented() -> None:
    for option in (*RECORDING, *SERVER):
        assert f"`{option.opts[0]}" in PAGE, option.opts[0]
