"""Traces of lengths and hashes become prompts that share what the hashes say, and are as long."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from anchorline.bench.live.blocks import is_block_trace, read_block_trace, words_of, written_out
from anchorline.bench.trace import CHAT_PATH, Trace
from anchorline.errors import ConfigError

LINE = {"timestamp": 1500, "input_length": 1000, "output_length": 30, "hash_ids": [1, 2]}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def trace_of(path: Path, *lines: Any, words_per_token: float = 1.0) -> Trace:
    blocks = read_block_trace(write(path, *lines), block_tokens=512)
    return written_out(blocks, block_tokens=512, words_per_token=words_per_token)


def words(trace: Trace, index: int) -> list[str]:
    return str(trace.requests[index].body["messages"][0]["content"]).split(" ")


def test_a_line_is_a_chat_call_of_its_length(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "t.jsonl", LINE)
    (request,) = trace.requests
    assert (request.path, request.arrival_seconds, request.end_seconds) == (CHAT_PATH, 1.5, math.inf)
    assert request.body["max_tokens"] == 30
    assert len(words(trace, 0)) == 1000


def test_equal_hashes_are_equal_words_up_to_where_they_differ(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path / "t.jsonl",
        LINE,
        {**LINE, "input_length": 1400, "hash_ids": [1, 2, 3]},
        {**LINE, "hash_ids": [1, 4]},
    )
    first, longer, other = (words(trace, index) for index in range(3))
    assert longer[:1000] == first
    assert other[:512] == first[:512]
    assert other[512:] != first[512:]


def test_a_server_with_smaller_tokens_gets_fewer_words(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "t.jsonl", LINE, {**LINE, "hash_ids": [1, 4]}, words_per_token=0.25)
    assert len(words(trace, 0)) == 250
    assert words(trace, 0)[:128] == words(trace, 1)[:128]


def test_the_words_of_a_block_are_always_the_same() -> None:
    assert words_of(7, count=20) == words_of(7, count=40)[:20]
    assert words_of(7, count=20) != words_of(8, count=20)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "line 2"),
        ({**LINE, "input_length": "many"}, "input_length"),
        ({**LINE, "input_length": 0, "hash_ids": []}, "lengths"),
        ({**LINE, "timestamp": 1e300}, "timestamp"),
        ({**LINE, "hash_ids": [1]}, "--block-tokens"),
        ({**LINE, "hash_ids": [1, 2, 3]}, "--block-tokens"),
        ({"timestamp": 0, "hash_ids": []}, "input_length"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, named: str) -> None:
    path = write(tmp_path / "bad.jsonl", LINE, line)
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 2") as raised:
        read_block_trace(path, block_tokens=512)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["", LINE], True),
        ([{"t": 0, "t_end": 1, "path": CHAT_PATH, "body": {}}], False),
        (["{"], False),
        ([], False),
        (["[]"], False),
    ],
)
def test_its_first_line_tells_a_block_trace(tmp_path: Path, lines: list[Any], expected: bool) -> None:
    assert is_block_trace(write(tmp_path / "t.jsonl", *lines)) is expected
