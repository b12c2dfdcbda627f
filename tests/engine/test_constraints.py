"""The loop with masks over the fake runtime: one per choice, kept through preemption, and ends that are errors."""

from __future__ import annotations

import numpy as np
import pytest

from anchorline.engine.request import FinishReason
from anchorline.errors import ConstraintFailure
from anchorline.llama.interface import TokenArray
from tests.engine.harness import Harness, make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import END_TOKEN, FakeRuntime, expected_reply

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]
OTHER = [30, 31, 32, 33, 34, 35]


class Counting:
    """Implements ``TokenConstraint``: token k of a reply is one of two, and the end follows the last."""

    def __init__(self, length: int, *, fails_at: int | None = None) -> None:
        self.length = length
        self.fails_at = fails_at
        self.masks: list[CountingMask] = []

    def start(self) -> CountingMask:
        self.masks.append(CountingMask(self))
        return self.masks[-1]

    def holds(self, reply: list[int]) -> bool:
        return all(token in (2 * index, 2 * index + 1) for index, token in enumerate(reply))


class CountingMask:
    def __init__(self, constraint: Counting) -> None:
        self._constraint = constraint
        self.accepted: list[int] = []

    def allowed(self) -> TokenArray:
        position = len(self.accepted)
        if position == self._constraint.fails_at:
            raise ConstraintFailure("injected")
        if position == self._constraint.length:
            return np.array([END_TOKEN], np.int32)
        return np.array([2 * position, 2 * position + 1], np.int32)

    def accept(self, token: int) -> None:
        assert token in self.allowed()
        self.accepted.append(token)


def test_a_reply_keeps_to_its_constraint_and_ends_with_it() -> None:
    harness, constraint = Harness(FakeRuntime()), Counting(6)
    _, recorder = harness.open(make_prompt(PROMPT), max_tokens=20, constraint=constraint)
    harness.run()
    assert len(recorder.tokens[0]) == 6
    assert constraint.holds(recorder.tokens[0])
    assert recorder.finishes[0] is FinishReason.STOP


def test_max_tokens_cut_a_constrained_reply_short() -> None:
    harness, constraint = Harness(FakeRuntime()), Counting(6)
    _, recorder = harness.open(make_prompt(PROMPT), max_tokens=4, constraint=constraint)
    harness.run()
    assert len(recorder.tokens[0]) == 4
    assert recorder.finishes[0] is FinishReason.LENGTH


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_each_choice_has_a_mask_of_its_own(parallel: int) -> None:
    harness, constraint = Harness(FakeRuntime(), parallel=parallel), Counting(5)
    _, recorder = harness.open(make_prompt(PROMPT), max_tokens=20, choices=3, seed=1, constraint=constraint)
    harness.run()
    assert len(constraint.masks) == 3
    for choice in range(3):
        assert len(recorder.tokens[choice]) == 5
        assert constraint.holds(recorder.tokens[choice])
    assert len({tuple(reply) for reply in recorder.tokens.values()}) > 1


def test_a_preempted_reply_goes_on_behind_what_it_said() -> None:
    """Two long replies in a pool for one and a half of them."""
    runtime = FakeRuntime(context_tokens=45)
    harness, first, second = Harness(runtime, parallel=2, resident_idle=0), Counting(20), Counting(20)
    _, one = harness.open(make_prompt(PROMPT), max_tokens=25, constraint=first)
    _, two = harness.open(make_prompt(OTHER), max_tokens=25, constraint=second)
    harness.run()
    assert harness.loop.preemptions > 0
    assert first.holds(one.tokens[0])
    assert second.holds(two.tokens[0])
    assert len(one.tokens[0]) == len(two.tokens[0]) == 20
    assert len(first.masks) == len(second.masks) == 1


def test_a_failing_mask_ends_its_call_with_an_error_and_no_other() -> None:
    harness = Harness(FakeRuntime(), parallel=3)
    failing, other = Recorder(), Recorder()
    harness.open(make_prompt(PROMPT), max_tokens=20, constraint=Counting(9, fails_at=3), recorder=failing)
    harness.open(make_prompt(OTHER), max_tokens=6, recorder=other)
    harness.run()
    assert isinstance(failing.error, ConstraintFailure)
    assert len(failing.tokens[0]) == 3
    assert other.error is None
    assert other.tokens[0] == expected_reply(OTHER, 6)


def test_a_mask_that_fails_at_once_ends_all_choices() -> None:
    harness = Harness(FakeRuntime(), parallel=3)
    call, recorder = harness.open(make_prompt(PROMPT), max_tokens=20, choices=3, constraint=Counting(9, fails_at=0))
    harness.run()
    assert isinstance(recorder.error, ConstraintFailure)
    assert recorder.tokens == {}
    assert all(stream.sampler is None for stream in call.streams)
    assert not harness.loop.running


def test_a_constrained_reply_is_the_same_from_a_restored_prompt() -> None:
    harness = Harness(FakeRuntime(), resident_idle=0)
    replies = []
    for _ in range(2):
        _, recorder = harness.open(make_prompt(PROMPT), max_tokens=20, constraint=Counting(8))
        harness.run()
        replies.append(recorder.tokens[0])
        report = recorder.report
    assert report is not None
    assert report.host_tokens > 0
    assert replies[0] == replies[1]
