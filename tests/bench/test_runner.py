"""Plans are carried out: in order, at the same time where they may, and not before they are due."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from anchorline.bench.due import Due
from anchorline.bench.runner import run_plan

WAIT_SECONDS = 60.0
AGES_SECONDS = 1e12


def due(*after: int, gap: float = 0.0, earliest: float = 0.0) -> Due:
    return Due(after=after, gap_seconds=gap, earliest_seconds=earliest)


def counting_sender(at_once: list[int]) -> Callable[[int], int]:
    """Notes how many calls are under way whenever one begins."""
    lock, running = threading.Lock(), [0]

    def send(place: int) -> int:
        with lock:
            running[0] += 1
            at_once.append(running[0])
        with lock:
            running[0] -= 1
        return place

    return send


def test_a_call_is_sent_when_all_that_it_waits_for_were_answered() -> None:
    order: list[int] = []
    calls = [due(2), due(0), due(), due(1, 2)]
    done = run_plan(calls, order.append, concurrency=4)
    assert order == [2, 0, 1, 3]
    assert done[2].ended_seconds <= done[0].sent_seconds <= done[0].ended_seconds <= done[1].sent_seconds


def test_calls_that_wait_for_nothing_are_under_way_together() -> None:
    """Each ends only once the others have begun."""
    together = threading.Barrier(3)
    done = run_plan([due()] * 3, lambda place: together.wait(WAIT_SECONDS), concurrency=3)
    assert len(done) == 3


def test_never_more_calls_than_are_allowed() -> None:
    at_once: list[int] = []
    done = run_plan([due()] * 40, counting_sender(at_once), concurrency=2)
    assert [each.result for each in done] == list(range(40))
    assert max(at_once) <= 2


def test_no_call_is_sent_before_it_is_due() -> None:
    calls = [due(), due(0, gap=0.05), due(earliest=0.1), due(0, gap=0.01, earliest=0.08)]
    done = run_plan(calls, lambda place: place, concurrency=1)
    assert done[1].sent_seconds >= done[0].ended_seconds + 0.05
    assert done[2].sent_seconds >= 0.1
    assert done[3].sent_seconds >= 0.08


def test_a_call_may_be_due_in_ages() -> None:
    """Longer than a thread can wait at once. The first call ends, and the ages with it, once the plan waits."""
    now, looked = [0.0], threading.Semaphore(0)

    def clock() -> float:
        seconds = now[0]
        if threading.current_thread() is threading.main_thread():
            looked.release()
        return seconds

    def send(place: int) -> int:
        if place == 0:
            for _ in ("start", "first call due?", "second call due?", "how long to wait?"):
                assert looked.acquire(timeout=WAIT_SECONDS)
            now[0] = AGES_SECONDS
        return place

    done = run_plan([due(), due(earliest=AGES_SECONDS)], send, concurrency=2, clock=clock)
    assert [each.result for each in done] == [0, 1]


def test_a_call_that_had_to_wait_for_room_says_how_late_it_was() -> None:
    first, second = run_plan([due(), due()], lambda place: place, concurrency=1)
    assert second.late_seconds == second.sent_seconds >= first.ended_seconds


def test_what_fails_ends_the_run() -> None:
    sent: list[int] = []

    def send(place: int) -> None:
        sent.append(place)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        run_plan([due(), due(), due(0)], send, concurrency=1)
    assert sent == [0]


def test_an_empty_plan_has_ended() -> None:
    assert run_plan([], lambda place: place, concurrency=1) == []
