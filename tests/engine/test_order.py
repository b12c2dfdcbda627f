"""Who starts next of those that wait: less to prefill goes first, and nobody is passed without end."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from anchorline.cache.prompt import Prompt
from anchorline.engine.order import Waiting, choose_next
from tests.engine.harness import Harness, make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime

CONTEXT_TOKENS = 256
LONG = 200
"""Tokens of a conversation: two of them don't fit the context together."""


def waiting(*missing: int, fixed: tuple[int, ...] = ()) -> list[Waiting]:
    """Those at ``fixed`` may not be passed by."""
    return [Waiting(missing_tokens=tokens, may_be_passed=index not in fixed) for index, tokens in enumerate(missing)]


def test_the_one_with_least_to_prefill_starts_and_of_equals_the_first() -> None:
    assert choose_next(waiting(30, 10, 20, 10)) == 1


def test_what_may_not_be_passed_by_starts_before_that() -> None:
    assert choose_next(waiting(30, 10, 20, fixed=(2,))) == 2
    assert choose_next(waiting(30, 10, 20, fixed=(0, 2))) == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_where_nothing_may_be_passed_by_the_first_starts(missing: list[int]) -> None:
    assert choose_next(waiting(*missing, fixed=tuple(range(len(missing))))) == 0


# -- in the loop --------------------------------------------------------------------------------


def make(*, max_passes: int, parallel: int = 1) -> Harness:
    """An engine that keeps nothing in host RAM: what leaves the context is prefilled again."""
    runtime = FakeRuntime(context_tokens=CONTEXT_TOKENS, sequences=parallel + 2)
    return Harness(runtime, cache_bytes=1, parallel=parallel, resident_idle=1, max_passes=max_passes)


def talk(name: int, *, turn: int) -> Prompt:
    """A long conversation: each turn goes on from the one before."""
    return make_prompt([name, *range(100, 100 + LONG - 1), *([name] * turn)])


def turns_before_another_agent(harness: Harness, *, turns: int) -> int:
    """How many turns of a conversation start before another agent's call that came before all but the first."""
    harness.open(talk(1, turn=1), max_tokens=1)
    _, other = harness.open(talk(2, turn=1), max_tokens=1)
    later: list[Recorder] = [harness.open(talk(1, turn=turn), max_tokens=1)[1] for turn in range(2, 2 + turns)]
    while not other.has_ended:
        harness.loop.step()
    started = sum(recorder.has_ended for recorder in later)
    harness.run()
    return started


def test_a_conversation_goes_on_before_another_agent_takes_its_cells() -> None:
    harness = make(max_passes=5)
    assert turns_before_another_agent(harness, turns=3) == 3
    assert harness.loop.decoded_tokens < 3 * LONG, "each conversation was prefilled once"


def test_but_not_more_often_than_the_limit_says() -> None:
    assert turns_before_another_agent(make(max_passes=5), turns=9) == 5


def test_without_passes_calls_start_in_the_order_in_which_they_came() -> None:
    assert turns_before_another_agent(make(max_passes=0), turns=9) == 0


def test_what_fits_beside_those_that_run_passes_what_does_not() -> None:
    harness = make(max_passes=1, parallel=3)
    running, large, small, second = (
        harness.open(prompt, max_tokens=9)[0]
        for prompt in (talk(1, turn=1), talk(2, turn=1), make_prompt([3, 3]), make_prompt([4, 4]))
    )
    harness.run()
    started = sorted((running, large, small, second), key=lambda call: call.admitted_seconds or 0.0)
    assert started == [small, running, large, second], "the second may not pass it by as well"


def test_no_idle_sequence_goes_for_a_call_that_does_not_fit_anyway() -> None:
    harness = make(max_passes=0, parallel=2)
    harness.ask(make_prompt([3] * 20), max_tokens=1)
    harness.open(talk(1, turn=1), max_tokens=9)
    harness.open(talk(2, turn=1), max_tokens=1)
    harness.loop.step()
    assert [live.length for live in harness.loop.pool.idle()] == [20]
    harness.run()
