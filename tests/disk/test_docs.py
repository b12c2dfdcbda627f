"""docs/disk.md has every byte of a header, and every word that a count may have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anchorline.disk.counters import Unwritten
from anchorline.disk.faults import FaultKind
from anchorline.disk.format import CHECKSUM_BYTES, FIXED_BYTES, MAGIC, MAX_OWNER_BYTES, VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "disk.md").read_text()


@pytest.mark.parametrize("word", [*FaultKind, *Unwritten])
def test_kinds_of_faults_and_reasons_are_explained(word: str) -> None:
    assert f"`{word}`" in PAGE


def test_the_fields_of_a_header_follow_each_other_without_gaps() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    at = 0
    for offset, size in rows:
        assert int(offset) == at
        at += int(size)
    assert at == FIXED_BYTES


def test_constants_are_those_of_the_code() -> None:
    for text in (
        f"magic, `{MAGIC.decode()}`",
        f"version, {VERSION}",
        f"at most {MAX_OWNER_BYTES}",
        f"| … | {CHECKSUM_BYTES} |",
    ):
        assert text in PAGE
