"""How long a call waits for a conversation to come back whose cells it would take, and that it does in the loop."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from anchorline.cache.prompt import Prompt
from anchorline.engine.returns import GAPS, WAIT_SECONDS_MAX, Returns
from tests.engine.harness import Harness, make_prompt
from tests.support.fake_runtime import FakeRuntime, expected_reply

seconds = st.floats(0.0, 100.0)


def seen(*gaps: float) -> Returns:
    returns = Returns()
    for gap in gaps:
        returns.note(gap)
    return returns


def test_nobody_is_waited_for_of_whom_nothing_is_known() -> None:
    assert seen().wait_seconds(0.0, loss_seconds=100.0) == 0


def test_who_comes_back_at_once_is_waited_for_and_then_no_more() -> None:
    returns = seen(0.1, 0.1, 0.1)
    assert returns.wait_seconds(0.0, loss_seconds=1.0) == pytest.approx(0.1, rel=0.1)
    assert 0 < returns.wait_seconds(0.08, loss_seconds=1.0) < 0.03
    assert returns.wait_seconds(0.2, loss_seconds=1.0) == 0


def test_what_is_quickly_prefilled_again_is_not_worth_a_long_wait() -> None:
    returns = seen(1.0, 1.0, 1.0)
    assert returns.wait_seconds(0.0, loss_seconds=0.01) == 0
    assert returns.wait_seconds(0.0, loss_seconds=1.0) >= 1.0


def test_the_wait_ends_where_those_that_may_still_come_are_too_few_for_it() -> None:
    returns = seen(*[0.1] * 9, 1.9)
    assert returns.wait_seconds(0.0, loss_seconds=0.5) == pytest.approx(0.1, rel=0.1)


def test_old_gaps_are_forgotten() -> None:
    returns = seen(*[0.1] * 5, *[50.0] * GAPS)
    assert returns.wait_seconds(0.0, loss_seconds=10.0) == 0


@given(st.lists(seconds, max_size=40), seconds, seconds)
def test_no_wait_is_longer_than_the_limit_or_than_what_it_saves(gaps: list[float], idle: float, loss: float) -> None:
    wait = seen(*gaps).wait_seconds(idle, loss)
    assert 0 <= wait <= min(WAIT_SECONDS_MAX, 5 * loss)


# -- in the loop --------------------------------------------------------------------------------

LONG = 900
"""Tokens of a conversation: two of them don't fit the context together."""


def make(*, cache_bytes: int = 1, max_passes: int = 16) -> Harness:
    """By default an engine that keeps nothing in host RAM: what leaves the context is prefilled again."""
    runtime = FakeRuntime(context_tokens=1200, sequences=4)
    harness = Harness(runtime, cache_bytes=cache_bytes, parallel=2, max_passes=max_passes)
    harness.loop.meter.prefilled(512, 5.12, cells=None)
    return harness


def talk(name: int, *, turns: int) -> Prompt:
    """A long conversation, which repeats what it was answered."""
    ids = [name, *(n * name % 40 for n in range(LONG - 1))]
    for _ in range(turns - 1):
        ids += [*expected_reply(ids, 1), name]
    return make_prompt(ids)


def converse(harness: Harness, gaps: Sequence[float] = (0.1, 0.1, 0.1)) -> None:
    """A turn of a conversation after each of ``gaps``, the seconds that its tools took."""
    for turns, gap in enumerate(gaps, 1):
        harness.clock.seconds += gap
        harness.ask(talk(3, turns=turns), max_tokens=1)


def resting(harness: Harness) -> None:
    """Step until only time can change something."""
    while harness.loop.has_work:
        harness.loop.step()


def test_a_call_waits_for_a_conversation_whose_cells_it_would_take() -> None:
    harness = make()
    converse(harness)
    other, _ = harness.open(talk(7, turns=1), max_tokens=1)
    resting(harness)
    assert other.admitted_seconds is None
    assert harness.loop.awaited_returns == 1
    assert harness.loop.due_seconds - harness.clock.seconds < WAIT_SECONDS_MAX
    _, back = harness.open(talk(3, turns=4), max_tokens=1)
    resting(harness)
    assert back.report is not None
    assert back.report.prefilled_tokens <= 2
    harness.run()
    assert other.admitted_seconds is not None
    assert other.sharing_seconds == other.load_seconds == 0


def test_who_does_not_come_back_holds_nobody_up_for_long() -> None:
    harness = make()
    converse(harness)
    asked = harness.clock.seconds
    other, recorder = harness.open(talk(7, turns=1), max_tokens=1)
    harness.run()
    assert recorder.tokens[0] == expected_reply(talk(7, turns=1).tokens.tolist(), 1)
    assert other.admitted_seconds is not None
    assert other.admitted_seconds - asked < WAIT_SECONDS_MAX


def test_who_has_waited_to_the_end_waits_no_more() -> None:
    """Most come back quickly; once that time is over it would pay to wait for the few that do not."""
    harness = make()
    converse(harness, [1.9, 1.9, *[0.1] * 20])
    harness.ask(talk(7, turns=1), max_tokens=1)
    assert harness.loop.awaited_returns == 1


def test_nobody_waits_for_what_host_ram_keeps() -> None:
    harness = make(cache_bytes=1 << 20)
    converse(harness)
    harness.ask(talk(7, turns=1), max_tokens=1)
    assert harness.loop.awaited_returns == 0


def test_nobody_waits_where_calls_start_in_their_order() -> None:
    harness = make(max_passes=0)
    converse(harness)
    harness.ask(talk(7, turns=1), max_tokens=1)
    assert harness.loop.awaited_returns == 0


def test_who_waits_is_passed_no_more_often_than_others_are() -> None:
    harness = make(max_passes=2)
    converse(harness)
    other, _ = harness.open(talk(7, turns=1), max_tokens=1)
    started = 0
    for turns in range(4, 12):
        resting(harness)
        harness.open(talk(3, turns=turns), max_tokens=1)
        resting(harness)
        started += other.admitted_seconds is None
    harness.run()
    assert 1 <= started <= 2


def test_of_those_that_have_waited_the_one_with_least_to_prefill_starts() -> None:
    harness = make()
    converse(harness)
    large, _ = harness.open(talk(7, turns=1), max_tokens=1)
    small, _ = harness.open(make_prompt([11] * 500), max_tokens=1)
    resting(harness)
    assert harness.loop.awaited_returns >= 2
    harness.run()
    assert small.admitted_seconds is not None
    assert large.admitted_seconds is not None
    assert small.admitted_seconds < large.admitted_seconds
