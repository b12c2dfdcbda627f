"""Which lines say by themselves that they will be others next time. What may be an instruction is left alone."""

from __future__ import annotations

import pytest

from anchorline.prompt.volatile import LINE_CHARACTERS, Volatile, volatile_line


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("It is 14:00:11 now.", Volatile.CLOCK),
        ("Today: Mon Nov 30 2026.", Volatile.CLOCK),
        ("Today's date: 2025-11-30\r\n", Volatile.CLOCK),
        ("- **Current date:** Monday, 30 November 2026", Volatile.CLOCK),
        ("Current time: 14:05 CET", Volatile.CLOCK),
        ("Local time (Europe/Berlin): 2026-12-01T14:05:11+01:00", Volatile.CLOCK),
        ("now=2026-11-30T23:59:59Z", Volatile.CLOCK),
        ("Timestamp: 1796072400", Volatile.CLOCK),
        ("  <date>2026-12-01</date>", Volatile.CLOCK),
        ("Conversation started: Tuesday, December 01, 2026 02:05 PM", Volatile.CLOCK),
        ("12 requests so far.", Volatile.NUMBER),
        ("Tokens remaining: 12,034", Volatile.NUMBER),
        ("Context used: 43 %", Volatile.NUMBER),
        ("Request c39f0a71d2.", Volatile.IDENTIFIER),
        ("session_id=Zk9_qWx2LpT", Volatile.IDENTIFIER),
        ("Session ID: 0b5c3f6e-0d5e-4e3f-9a47-3d1c5b6f7a88", Volatile.IDENTIFIER),
        ("x-anthropic-billing-header: cch=ab1cd; cc_version=2.0", Volatile.IDENTIFIER),
    ],
)
def test_a_line_about_this_moment_is_known_by_what_it_says(line: str, kind: Volatile) -> None:
    assert volatile_line(line) is kind


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Run the tests now",
        "You are Bot. Today is 2026-12-01. Be nice.",
        "Knowledge cutoff: December 2023",
        "Current version: 1.2.34",
        "Current working directory: /srv/2026-12-01/x",
        "The meeting is at 14:05",
        "Office hours 09:00 to 17:00",
        "Time limit: 10:00",
        "Use the date format 2026-01-31",
        "2026-12-01",
        "Complete the remaining 3 tasks.",
        "Step 1",
        "Run setup_v2_tests",
        "Chat tests/unit2/all",
        "MEMORY [4% — 65/1,375 chars]",
        '"date": "2026-12-01",',
        "| date | 2026-12-01 |",
        "<env> Today's date: 2026-12-01",
        "Mention x-anthropic-billing-header: never",
        f"Today is 2026-12-01, {'a' * LINE_CHARACTERS}",
    ],
)
def test_what_may_be_an_instruction_or_a_part_of_something_is_none(line: str) -> None:
    assert volatile_line(line) is None
