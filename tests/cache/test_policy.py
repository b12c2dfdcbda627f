"""The key functions: what each policy gives up first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.classes import CallClass
from anchorline.cache.policy import (
    EVICTION,
    FIRST_SIGHT_TURNS,
    KeepValue,
    Moment,
    cost_aware,
    least_recently_used,
    never,
)
from anchorline.cache.rows import Rows, State
from anchorline.cache.segment import Segment
from tests.support.fake_runtime import tokens_of

ROW_BYTES = 10


def segment(
    *,
    tokens: int = 100,
    call_class: CallClass = CallClass.COLD,
    used_at: tuple[int, ...] = (0,),
    live: bool = False,
    parent: Segment | None = None,
    kept: bool = True,
    state_bytes: int = 0,
) -> Segment:
    """A segment first seen at the first of ``used_at`` and come back to at the others, then ``live`` or not."""
    made = Segment(parent, 0 if parent is None else parent.end, tokens_of([1] * tokens), owner="")
    made.call_class, made.last_used, made.last_turn = call_class, used_at[0], used_at[0]
    for tick in used_at[1:]:
        made.note_use(tick, tick, call_class, resident_tokens=made.end if live else 0)
    if kept:
        rows = Rows(memoryview(bytes(tokens * ROW_BYTES)), made.start, made.end, lambda: None)
        made.rows = rows.view(tokens)
    if state_bytes:
        made.state = State(memoryview(bytes(state_bytes)), lambda: None)
    return made


def at(tick: int, *, turn: int | None = None, stateful: bool = False) -> Moment:
    """All calls were turns of conversations, but where ``turn`` says that there were fewer."""
    return Moment(tick=tick, turn=tick if turn is None else turn, stateful=stateful, bytes_per_token=ROW_BYTES)


def cost_aware_at(tick: int, made: Segment) -> float:
    return cost_aware(made, at(tick))


def test_what_is_used_more_often_stays() -> None:
    often = segment(used_at=(0, 2, 4, 6))
    seldom = segment(used_at=(0, 7))
    assert cost_aware_at(8, often) > cost_aware_at(8, seldom)


def test_what_is_live_whenever_it_is_used_goes_before_what_is_used_less_often() -> None:
    """Its copy in RAM would save nothing as long as that goes on."""
    often_live, seldom = segment(used_at=tuple(range(0, 20, 2)), live=True), segment(used_at=(0, 6, 12))
    assert 0 < cost_aware_at(20, often_live) < cost_aware_at(20, seldom)
    often_live.note_use(20, 20, CallClass.CONVERSATION)
    often_live.note_use(22, 22, CallClass.CONVERSATION)
    assert cost_aware_at(24, often_live) > cost_aware_at(24, seldom), "it has been missed since"


def test_what_reaches_beyond_what_is_live_was_missed() -> None:
    reaches, ends = segment(tokens=100), segment(tokens=100)
    reaches.note_use(1, 1, CallClass.CONVERSATION, resident_tokens=99)
    ends.note_use(1, 1, CallClass.CONVERSATION, resident_tokens=100)
    assert (reaches.needed, ends.needed) == (1.0, 0.5)


def test_what_is_overdue_goes_before_what_is_in_its_rhythm() -> None:
    """A conversation of quick turns that ended, and one of slow turns that goes on."""
    ended = segment(used_at=(0, 2, 4, 6))
    slow = segment(used_at=(0, 10, 20, 30))
    assert cost_aware_at(8, ended) > cost_aware_at(8, slow)
    assert cost_aware_at(32, ended) < cost_aware_at(32, slow)


def test_what_takes_turns_is_worth_the_same_at_any_time_of_its_round() -> None:
    """So nothing pushes out what comes back as often as itself, as the least recently used would be."""
    one, other = segment(used_at=(0, 6, 12)), segment(used_at=(3, 9, 15))
    assert cost_aware_at(16, one) == cost_aware_at(16, other)
    assert least_recently_used(one, at(16)) < least_recently_used(other, at(16))


def test_first_sight_is_on_probation() -> None:
    cold = segment(used_at=(9,))
    used = segment(used_at=(6, 8))
    assert cost_aware_at(9, cold) < cost_aware_at(9, used)
    assert cost_aware(segment(used_at=(8 + FIRST_SIGHT_TURNS,)), at(8 + FIRST_SIGHT_TURNS)) > cost_aware(
        used, at(8 + FIRST_SIGHT_TURNS)
    )


def test_however_many_other_calls_come_a_conversation_is_no_more_overdue() -> None:
    used = segment(used_at=(6, 8))
    assert cost_aware(used, at(9)) == cost_aware(used, at(10_000, turn=9))


def test_a_conversations_next_turn_comes_as_its_last_ones_did() -> None:
    history = segment(call_class=CallClass.CONVERSATION, used_at=(0, 2, 4, 6))
    turn = segment(call_class=CallClass.CONVERSATION, used_at=(6,), parent=history)
    question = segment(used_at=(6,))
    assert cost_aware_at(7, question) < cost_aware_at(7, turn) < cost_aware_at(7, history)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(0, 100_000))
def test_nothing_of_a_side_call_is_ever_worth_what_others_are(gaps: list[int], age: int) -> None:
    ticks = [sum(gaps[:count]) for count in range(len(gaps) + 1)]
    side = segment(call_class=CallClass.SIDE, used_at=tuple(ticks))
    oldest = segment(call_class=CallClass.COLD, used_at=(0,))
    tick = ticks[-1] + age
    assert cost_aware_at(tick, side) < cost_aware_at(tick, oldest)


def test_large_states_are_worth_less_by_the_byte_and_rows_without_one_nothing() -> None:
    small = segment(used_at=(0, 2), state_bytes=100)
    large = segment(used_at=(0, 2), state_bytes=10_000)
    rows = segment(used_at=(0, 2))
    values = [cost_aware(made, at(3, stateful=True)) for made in (rows, large, small)]
    assert values[0] == 0.0 < values[1] < values[2]


def test_what_is_not_kept_yet_has_to_be_worth_clearly_more() -> None:
    """So of what is used about as often one part stays, instead of each pushing out the other."""
    kept = segment(used_at=(0, 6, 12))
    assert cost_aware_at(16, segment(used_at=(1, 5, 11), kept=False)) < cost_aware_at(16, kept)
    assert cost_aware_at(16, segment(used_at=(11, 13, 15), kept=False)) > cost_aware_at(16, kept)


def test_on_probation_the_newer_takes_the_place_of_the_older() -> None:
    assert cost_aware_at(9, segment(used_at=(9,), kept=False)) > cost_aware_at(9, segment(used_at=(8,)))


@pytest.mark.parametrize("policy", EVICTION.values(), ids=EVICTION.keys())
def test_no_policy_gives_up_the_newer_of_two_that_are_equal_but_for_age(policy: KeepValue) -> None:
    assert policy(segment(used_at=(5,)), at(9)) >= policy(segment(used_at=(4,)), at(9))


def test_without_eviction_nothing_is_worth_more_than_what_is_there() -> None:
    assert never(segment(used_at=(9,)), at(9)) == never(segment(used_at=(0,)), at(9))
