"""The README names what the code knows."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from anchorline.api.thinking import TEMPLATE_KWARGS
from anchorline.metrics.metrics import Metrics
from anchorline.prompt.effort import EFFORTS
from anchorline.prompt.floating import OPENING
from anchorline.prompt.rewrites import Rewrites

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
REWRITES = (ROOT / "docs" / "rewrites.md").read_text()
BENCHMARKS = ROOT / "BENCHMARKS.md"


def test_template_options_and_efforts_are_listed() -> None:
    for name in (*TEMPLATE_KWARGS, *EFFORTS):
        assert f"`{name}`" in README, name


def test_every_rewrite_is_listed_and_described() -> None:
    flags = [f"--{field.name.replace('_', '-')}" for field in fields(Rewrites) if field.name != "memory_bytes"]
    assert len(flags) == 3
    for flag in flags:
        assert f"`{flag}`" in README, flag
        assert f"## `{flag}`" in REWRITES, flag
    for name in ("--max-rewrite-bytes", *(f.name for f in Metrics().rewritten.collect()), OPENING.strip()):
        assert name in REWRITES, name


def test_counts_of_the_rewrites_have_a_command() -> None:
    assert "make bench-rewrites" in REWRITES
    assert "\nbench-rewrites:" in (ROOT / "Makefile").read_text()


@pytest.mark.skipif(not BENCHMARKS.is_file(), reason="no BENCHMARKS.md: 'make bench' writes it")
def test_the_headline_is_that_of_the_benchmarks() -> None:
    """Each row of the first table of BENCHMARKS.md, word for word, and no other that claims to come from there."""
    rows = [line for line in BENCHMARKS.read_text().splitlines() if line.endswith("[BENCHMARKS.md](BENCHMARKS.md) |")]
    assert rows
    assert [line for line in README.splitlines() if line.endswith("[BENCHMARKS.md](BENCHMARKS.md) |")] == rows
