"""``anchorline bench`` from end to end, as small as it gets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from anchorline.bench.peers import can_import
from anchorline.bench.standing.plan import TOOL_SESSION
from anchorline.bench.standing.servers import NO_CACHE, OURS, TUNED
from anchorline.cli.main import cli
from anchorline.cli.serve import SETTINGS
from anchorline.cli.serve_args import RENDERING, rendering_arguments

SMALL = ("bench", "--model", "test:llama", "--anchor-tokens", "600", "--rounds", "1", "--threads", "1")
PEER_PYTHON = os.environ.get("PEER_PYTHON", sys.executable)


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, the JSON, the markdown)."""
    paths = ["--json", str(folder / "out.json"), "--markdown", str(folder / "out.md")]
    result = CliRunner().invoke(cli, [*SMALL, *paths, *arguments])
    assert (folder / "out.json").is_file(), result.stderr
    return result.exit_code, json.loads((folder / "out.json").read_text()), (folder / "out.md").read_text()


def test_a_small_bench_without_peers(tmp_path: Path) -> None:
    code, told, markdown = run(tmp_path, "--workload", TOOL_SESSION, "--peer-python", sys.executable)
    (result,) = told["results"]
    assert (code, told["faults"], result["kind"]) == (0, [], "plain")
    summaries = {summary["server"]: summary for summary in result["summaries"]}
    assert summaries[OURS]["oracle_ratio"] == pytest.approx(1.0, abs=0.05)
    assert summaries[NO_CACHE]["prefilled_tokens"] == summaries[NO_CACHE]["prompt_tokens"]
    assert summaries[OURS]["prompt_tokens"] == summaries[NO_CACHE]["prompt_tokens"]
    assert f"| {TOOL_SESSION} | {OURS} |" in markdown


def test_a_template_for_our_servers_is_the_one_that_prompts_are_rendered_with(tmp_path: Path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("{{ tools | tojson }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    told = ("--serve-args", f"--chat-template {template} --cache-ram 64MiB")
    code, found, _ = run(tmp_path, "--workload", TOOL_SESSION, "--peer-python", sys.executable, *told)
    (result,) = found["results"]
    assert (code, found["faults"]) == (0, [])
    summaries = {summary["server"]: summary for summary in result["summaries"]}
    assert summaries[OURS]["oracle_ratio"] == pytest.approx(1.0, abs=0.05)
    assert summaries[NO_CACHE]["prefilled_tokens"] == summaries[NO_CACHE]["prompt_tokens"]


def test_what_decides_about_prompts_is_told_from_the_rest() -> None:
    told = "a.gguf --ctx 99 --chat-template=x.jinja --override-kv a=int:1 --pin-date --override-kv b=int:2 -t 3 --exact"
    rendering = "--chat-template x.jinja --override-kv a=int:1 --override-kv b=int:2 --pin-date --exact"
    assert rendering_arguments([*told.split(), "--warm", "f", "--max-tools", "7"]) == [
        *rendering.split(),
        "--max-tools",
        "7",
    ]
    assert {option.name for option in SETTINGS} >= RENDERING


@pytest.mark.skipif(not can_import(PEER_PYTHON, "xllamacpp"), reason=f"{PEER_PYTHON} has no xllamacpp (PEER_PYTHON)")
def test_llama_server_runs_beside_with_its_defaults_and_at_its_best(tmp_path: Path) -> None:
    peers = ["--peer", "llama-server", "--peer", TUNED, "--peer-python", PEER_PYTHON]
    code, told, _ = run(tmp_path, "--workload", TOOL_SESSION, *peers)
    (result,) = told["results"]
    assert (code, result["absences"]) == (0, [])
    for peer in ("llama-server", TUNED):
        (summary,) = [summary for summary in result["summaries"] if summary["server"] == peer]
        assert summary["prefilled_tokens"] < summary["prompt_tokens"]
        assert summary["to_ours"] > 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--peer-python", "/no/such/python"), "--peer-python /no/such/python"),
        (("--workload", "mix", "--traces", "."), "hermes-fanout.jsonl"),
        (("--model", "/no/such.gguf"), "/no/such.gguf"),
        (("--workload", "tool-sesion"), "tool-session"),
        (("--serve-args", "--chat-templat x"), "--serve-args: No such option '--chat-templat'"),
    ],
)
def test_what_cannot_be_done_is_named(
    tmp_path: Path, arguments: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["bench", "--quick", *arguments])
    assert result.exit_code == 2
    assert named in result.stderr
