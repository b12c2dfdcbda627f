"""Whose turn it is, where models take turns."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.server.model_order import Waiting, due, passes, starting


def waiting(models: str, *, passed: int = 0) -> list[Waiting]:
    return [Waiting(model=model, passed=passed) for model in models]


@pytest.mark.parametrize(
    ("models", "loaded", "starts"),
    [
        ("", "A", []),
        ("A", "A", [0]),
        ("B", "A", []),
        ("BA", "A", []),  # a switch is due: who comes later waits behind it
        ("BABAB", "B", [0, 2, 4]),
        ("A", None, []),
    ],
)
def test_who_starts(models: str, loaded: str | None, starts: list[int]) -> None:
    assert starting(waiting(models), loaded, max_passes=16) == starts


@pytest.mark.parametrize(("max_passes", "starts"), [(0, [0]), (1, [0, 2]), (2, [0, 2, 3])])
def test_nobody_is_passed_by_more_than_the_limit(max_passes: int, starts: list[int]) -> None:
    assert starting(waiting("BABBB"), "B", max_passes=max_passes) == starts


def test_earlier_passes_count() -> None:
    order = [Waiting(model="B"), Waiting(model="A", passed=3), Waiting(model="B"), Waiting(model="B")]
    assert starting(order, "B", max_passes=4) == [0, 2]
    assert passes([0, 2], 1) == 1


@pytest.mark.parametrize(("models", "loaded", "model"), [("", "A", None), ("AB", "A", None), ("BA", "A", "B")])
def test_the_next_model_is_that_of_the_one_who_waited_longest(models: str, loaded: str, model: str | None) -> None:
    assert due(waiting(models), loaded) == model


@dataclass
class _Request:
    model: str
    number: int
    passed: int = 0


@dataclass
class _Server:
    """What a switch does with the decisions, without anything that takes time."""

    max_passes: int
    loaded: str | None = None
    queue: list[_Request] = field(default_factory=list)
    running: list[_Request] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    switches: int = 0

    def settle(self) -> None:
        while True:
            order = [Waiting(model=each.model, passed=each.passed) for each in self.queue]
            starts = starting(order, self.loaded, max_passes=self.max_passes)
            for index, each in enumerate(self.queue):
                each.passed += 0 if index in starts else passes(starts, index)
                assert each.passed <= self.max_passes
            self.running += [self.queue[index] for index in starts]
            self.started += [self.queue[index].number for index in starts]
            self.queue = [each for index, each in enumerate(self.queue) if index not in starts]
            model = due([Waiting(model=each.model) for each in self.queue], self.loaded)
            if model is None or self.running:
                return
            self.loaded, self.switches = model, self.switches + 1


@given(events=st.lists(st.sampled_from("ABC-")), max_passes=st.integers(0, 4))
def test_everybody_gets_a_turn_in_order_and_only_the_loaded_model_runs(events: str, max_passes: int) -> None:
    server, arrived = _Server(max_passes), 0
    for event in events:
        if event == "-":
            del server.running[:1]
        else:
            server.queue.append(_Request(event, arrived))
            arrived += 1
        server.settle()
        assert all(each.model == server.loaded for each in server.running)
        assert server.running or not server.queue, "somebody waits although nothing is in the way"
    for _ in range(arrived):
        del server.running[:1]
        server.settle()
    assert sorted(server.started) == list(range(arrived))
    models = [event for event in events if event != "-"]
    for model in "ABC":
        own = [number for number in server.started if models[number] == model]
        assert own == sorted(own), "those of one model start as they came"
    if not max_passes:
        assert server.started == list(range(arrived))
