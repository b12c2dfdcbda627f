"""Killed at any moment, a process leaves files that others can use: never a wrong answer, never a refused start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_answers_over_the_files_of_killed_processes_equal_those_without_a_cache(kills: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.killing", str(tmp_path), str(kills), "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == kills
