"""Killed at any moment, a process leaves files that others can use: never a wrong answer, never a refused start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet


def many(model: str) -> ParameterSet:
    """Two hundred kills: minutes."""
    return pytest.param(model, 200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.mark.parametrize(
    ("model", "kills"),
    [("test:qwen35", 8), many("test:llama"), many("test:qwen35"), many("test:gemma3"), many("smollm2")],
)
def test_answers_over_the_files_of_killed_processes_equal_those_without_a_cache(
    model: str, kills: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    named = str(request.getfixturevalue("tiny_smollm2_path")) if model == "smollm2" else model
    command = [sys.executable, "-m", "tests.engine.killing", str(tmp_path), str(kills), "1", named]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == kills
