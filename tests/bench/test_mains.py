"""Benchmarks that cannot do their work say why in one line, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from anchorline.bench import long_sessions, warm_turn
from anchorline.bench.process import ServerFailed

OF_A_MODEL = [
    path for path in sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py")) if "--model" in path.read_text()
]
NO_MODEL = ("--model", "/no/such.gguf")
SMALL_SESSIONS = ("--ctx", "1024", "--head-tokens", "64", "--tokens", "256")


@pytest.mark.parametrize("path", OF_A_MODEL, ids=lambda path: path.stem)
def test_a_benchmark_that_fails_says_why_in_one_line(path: Path) -> None:
    done = subprocess.run([sys.executable, path, *NO_MODEL], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", [long_sessions, warm_turn])
def test_without_its_model_a_bench_ends_as_with_a_wrong_command_line(module: object) -> None:
    done = CliRunner().invoke(module.main, NO_MODEL)  # type: ignore[attr-defined]
    assert (done.exit_code, done.output) == (2, "Error: no model file at /no/such.gguf\n")


@pytest.mark.parametrize(
    ("main", "flag", "said"),
    [
        (long_sessions.main, "--tokens", "'many' is not a valid integer."),
        (long_sessions.main, "--fits", "'many' is not a valid number."),
        (warm_turn.main, "--rounds", "'many' is not a valid integer."),
    ],
)
def test_what_is_no_number_is_called_so(main: click.Command, flag: str, said: str) -> None:
    done = CliRunner().invoke(main, (flag, "many"))
    assert done.exit_code == 2
    assert done.output.endswith(f"Error: Invalid value for '{flag}': {said}\n")


@pytest.mark.parametrize(
    ("main", "sizes"),
    [(long_sessions.main, SMALL_SESSIONS), (warm_turn.main, ("--anchor-tokens", "2000", "--scales", "1"))],
)
def test_layers_of_a_test_model_are_refused(main: click.Command, sizes: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, ("--model", "test:llama", "--layers", "1", *sizes))
    said = "Error: --layers cuts a model file, and test:llama is none: leave it out or name a file\n"
    assert (done.exit_code, done.output) == (2, said)


def test_what_the_server_says_is_passed_on() -> None:
    done = CliRunner().invoke(long_sessions.main, [*SMALL_SESSIONS, "--serve-args", "--ubatch 256"])
    assert done.exit_code == 1
    said = "the server ended with code 2 before it listened: No such option: --ubatch; did you mean --ubatch-size?"
    assert done.output == f"Error: {said}\n"


def test_the_memory_of_a_server_that_has_ended_is_not_read() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ServerFailed):
        long_sessions.process_bytes(ended.pid, "VmHWM")
    ended.wait()
