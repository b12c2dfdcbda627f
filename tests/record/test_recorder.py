"""Recordings on disk: order, limits, and going on with one."""

from __future__ import annotations

import itertools
import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anchorline.bench.trace import read_trace
from anchorline.errors import ConfigError
from anchorline.record.recorder import DROPPED, NO_OBJECT, WAITING_CALLS, RecordedCall, Recorder
from anchorline.record.trace_file import TraceFile
from anchorline.record.trace_writer import FILE_FULL, TraceWriter

PATH = "/v1/chat/completions"


@contextmanager
def recorder(path: Path, *, append: bool = False, limit_bytes: int = 1 << 20) -> Iterator[Recorder]:
    """Keeps the text; each look at the clock finds it a second later."""
    ticks = itertools.count(50)
    with TraceFile(path, append=append, limit_bytes=limit_bytes) as file:
        take = TraceWriter(file, anonymiser=None).take
        made = Recorder(take, clock=lambda: float(next(ticks)), start_seconds=file.start_seconds)
        yield made
        made.close()


def body(name: str) -> bytes:
    return json.dumps({"model": name}).encode()


def names(path: Path) -> list[str]:
    return [request.body["model"] for request in read_trace(path).requests]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def test_calls_are_written_in_order_of_arrival(trace: Path) -> None:
    with recorder(trace) as made:
        first, second, third = (made.begin(PATH, body(name)) for name in "abc")
        made.end(third)
        made.end(first)
        made.end(second)
    assert names(trace) == ["a", "b", "c"]
    times = [(request.arrival_seconds, request.end_seconds) for request in read_trace(trace).requests]
    assert times == [(1, 5), (2, 6), (3, 4)]


def test_a_call_that_does_not_end_holds_up_only_so_many(trace: Path) -> None:
    with recorder(trace) as made:
        stuck = made.begin(PATH, body("stuck"))
        for number in range(WAITING_CALLS):
            made.end(made.begin(PATH, body(str(number))))
        made.end(stuck)
    assert names(trace) == [*map(str, range(WAITING_CALLS)), "stuck"]


class Stuck:
    """A recorder of three calls in the middle of the first, which is through when ``goes_on`` is set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self._begun = threading.Event()
        self.recorder = Recorder(self._take, clock=lambda: 0.0)
        for name in "abc":
            self.recorder.end(self.recorder.begin(PATH, body(name)))
        self._begun.wait()

    def _take(self, _: RecordedCall) -> None:
        self._begun.set()
        self.goes_on.wait()


def test_what_waits_can_be_dropped_and_is_counted() -> None:
    stuck = Stuck()
    stuck.recorder.drop()
    stuck.goes_on.set()
    assert stuck.recorder.close()
    assert (stuck.recorder.taken, dict(stuck.recorder.left_out)) == (1, {DROPPED: 2})


def test_a_call_that_is_not_through_in_time_is_dropped_too() -> None:
    stuck = Stuck()
    assert not stuck.recorder.close(patience_seconds=0)
    stuck.goes_on.set()
    stuck.recorder.close()
    assert (stuck.recorder.taken, dict(stuck.recorder.left_out)) == (0, {DROPPED: 3})


def test_the_file_is_its_owners_alone(trace: Path) -> None:
    with recorder(trace):
        assert stat.S_IMODE(trace.stat().st_mode) == 0o600


def test_a_file_that_is_there_is_not_written_over(trace: Path) -> None:
    trace.write_text("mine")
    with pytest.raises(ConfigError, match="--append"), recorder(trace):
        pass
    assert trace.read_text() == "mine"


def test_appending_goes_on_where_the_trace_ended(trace: Path) -> None:
    for name in ("a", "b"):
        with recorder(trace, append=True) as made:
            made.end(made.begin(PATH, body(name)))
    assert names(trace) == ["a", "b"]
    first, second = read_trace(trace).requests
    assert second.arrival_seconds == first.end_seconds + 1


@pytest.mark.parametrize("text", ["mine", '{"t": 1, "t_end": 2, "path": "/", "body": {}}'])
def test_only_a_whole_trace_is_gone_on_with(trace: Path, text: str) -> None:
    trace.write_text(text)
    with pytest.raises(ConfigError), recorder(trace, append=True):
        pass
    assert trace.read_text() == text


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--out .*none"), recorder(tmp_path / "none" / "trace.jsonl"):
        pass


def test_a_full_file_holds_whole_lines(trace: Path) -> None:
    with recorder(trace, limit_bytes=1024) as made:
        for _ in range(20):
            made.end(made.begin(PATH, body("a" * 100)))
    assert trace.stat().st_size <= 1024
    assert made.taken == len(read_trace(trace).requests) > 0
    assert made.left_out == {FILE_FULL: 20 - made.taken}


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'"a"', b'{"a": "\xff"}', b"[" * 100000], ids=["nothing", "half", "text", "no UTF-8", "deep"]
)
def test_what_is_no_object_is_left_out(trace: Path, raw: bytes) -> None:
    with recorder(trace) as made:
        made.end(made.begin(PATH, raw))
    assert made.left_out == {NO_OBJECT: 1}


def test_every_call_is_one_line_for_every_reader(trace: Path) -> None:
    name = "a\u2028b\u2029c\x85d\ne"
    with recorder(trace) as made:
        made.end(made.begin(PATH, json.dumps({"model": name}, ensure_ascii=False).encode()))
    assert len(trace.read_text(encoding="utf-8").splitlines()) == 1
    assert names(trace) == [name]
