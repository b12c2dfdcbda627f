"""Which words change by themselves, and where two texts differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.doctor.textdiff import text_diff
from anchorline.prompt.volatile import Volatile, masked


@pytest.mark.parametrize(
    ("before", "after", "kind", "shown"),
    [
        ("It is 14:05:11.", "It is 14:07:40.", Volatile.CLOCK, ("14:05:11.", "14:07:40.")),
        ("at 9:59am sharp", "at 10:00am sharp", Volatile.CLOCK, ("9:59am", "10:00am")),
        ("now=2026-11-30T23:59:59Z", "now=2026-12-01T00:00:02Z", Volatile.CLOCK, None),
        ("Today: Monday, 30 November 2026", "Today: Tuesday, 1 December 2026", Volatile.CLOCK, None),
        ("<t>1796072400</t>", "<t>1796072461</t>", Volatile.CLOCK, ("1796072400", "1796072461")),
        ("time:14:05", "time:14:06", Volatile.CLOCK, ("time:14:05", "time:14:06")),
        ("used 4% (65/1,954)", "used 16% (83/1,954)", Volatile.NUMBER, None),
        ("turn-17 of many", "turn-18 of many", Volatile.NUMBER, ("turn-17", "turn-18")),
        ("session c39f0a71d2", "session 07bb41e6f5", Volatile.IDENTIFIER, ("c39f0a71d2", "07bb41e6f5")),
        (
            "id 0b5c3f6e-0d5e-4e3f-9a47-3d1c5b6f7a88",
            "id f7a88c1d-77aa-4b0e-8a47-99aa0b1c2d3e",
            Volatile.IDENTIFIER,
            None,
        ),
        ("request 12 of c39f0a71d2", "request 13 of 07bb41e6f5", Volatile.IDENTIFIER, None),
        ("Debug the tools", "Keep the tools", None, ("Debug", "Keep")),
        ("3 files, one open", "4 files, two open", None, None),
        ("no files", "2 files", None, ("no", "2")),
    ],
)
def test_a_changed_line_is_judged_by_its_words(
    before: str, after: str, kind: Volatile | None, shown: tuple[str, str] | None
) -> None:
    (change,) = text_diff(before, after).changes
    assert change.volatile is kind
    if shown is not None:
        assert (change.before, change.after) == shown


def test_each_changed_line_is_a_change_of_its_own() -> None:
    diff = text_diff("a\nb 1\nc\nd 14:00\n", "a\nb 2\nc\nd 14:01\n")
    assert [(change.line, change.volatile) for change in diff.changes] == [(2, Volatile.NUMBER), (4, Volatile.CLOCK)]


def test_a_clock_is_found_beside_a_line_that_came() -> None:
    diff = text_diff("a\nIt is 14:00.\nb\n", "a\nRemember the milk.\nIt is 14:01.\nb\n")
    assert [(change.line, change.volatile) for change in diff.changes] == [(2, None), (3, Volatile.CLOCK)]


def test_masks_are_equal_for_lines_that_change_by_themselves() -> None:
    assert masked("Mon 30 Nov, 14:05: turn 17") == masked("Tue 1 Dec, 00:07: turn 9")
    assert masked("one file") != masked("two files")


LINES = st.lists(
    st.sampled_from(["alpha beta\n", "at 14:05\n", "at 14:06\n", "n 3\n", "n 4\n", "\n", "end"]), max_size=8
)


@given(LINES, LINES)
def test_what_is_kept_stands_in_both_texts_in_order(old: list[str], new: list[str]) -> None:
    before, after = "".join(old), "".join(new)
    diff = text_diff(before, after)
    place, end = 0, 0
    for piece in sorted(diff.kept, key=lambda piece: piece.offset):
        assert piece.offset >= end
        assert after[piece.offset : piece.offset + len(piece.text)] == piece.text
        end = piece.offset + len(piece.text)
        place = before.index(piece.text, place) + len(piece.text)
    assert bool(diff.changes) == (before != after)
