"""llama.cpp's log: to logging at its level, and to whoever wants to know why something failed."""

from __future__ import annotations

import logging
from collections import deque

import pytest

from anchorline.llama import library

WARNING, ERROR, INFO, CONTINUED = 3, 4, 2, 5


def say(level: int, text: bytes) -> None:
    """Log as llama.cpp does."""
    library.log.callback(level, text, None)


def test_levels_and_continued_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="anchorline.llama"), library.log.listen() as lines:
        say(INFO, b"loading ")
        say(CONTINUED, b"...\n")
        say(WARNING, b"careful\n")
        say(ERROR, b"first: one\nsecond: two\n")
        say(ERROR, b"broken \xff\n")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "loading ..."),
        ("WARNING", "careful"),
        ("ERROR", "first: one"),
        ("ERROR", "second: two"),
        ("ERROR", "broken �"),
    ]
    assert list(lines) == ["careful", "first: one", "second: two", "broken �"]
    assert list(library.log.recent)[-4:] == list(lines)


def test_a_full_pool_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="anchorline.llama"):
        say(WARNING, b"decode: failed to find a memory slot for batch of size 7\n")
    assert not caplog.records


def test_listeners_hear_only_their_block() -> None:
    with library.log.listen() as outer:
        with library.log.listen() as inner:
            say(ERROR, b"both\n")
        say(ERROR, b"outer\n")
    say(ERROR, b"nobody\n")
    assert (list(outer), list(inner)) == (["both", "outer"], ["both"])


def test_listeners_keep_the_latest_lines() -> None:
    with library.log.listen() as lines:
        for index in range(100):
            say(ERROR, b"line %d\n" % index)
    assert 10 <= len(lines) < 100
    assert lines[-1] == "line 99"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["load: error loading model: bad key: x", "load: failed to load model"], "bad key: x"),
        (["no prefix here: kept"], "no prefix here: kept"),
        (["load: failed to load model"], "load: failed to load model"),
        ([], "unknown"),
    ],
)
def test_reason(lines: list[str], expected: str) -> None:
    assert library.reason(deque(lines), otherwise="unknown") == expected


def test_row_sizes() -> None:
    sizes = {name: library.ggml_row_size(kind, 64) for name, kind in library.KV_TYPE_IDS.items()}
    assert (sizes["f32"], sizes["f16"], sizes["bf16"], sizes["q8_0"], sizes["q4_0"]) == (256, 128, 128, 68, 36)
    assert {library.ggml_blck_size(library.KV_TYPE_IDS[name]) for name in library.UNQUANTISED} == {1}
