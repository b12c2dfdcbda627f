"""What the pool takes the sequences to hold is what they hold, whoever shares with whom and loses what."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.cache.prompt import Prompt
from anchorline.engine.live import LiveSequence, SequencePool, TokenBuffer
from tests.support.fake_runtime import FakeRuntime

SEQUENCES = 6

steps = st.one_of(
    st.tuples(st.just("grow"), st.integers(0, SEQUENCES - 1), st.integers(1, 9)),
    st.tuples(st.just("fork"), st.integers(0, SEQUENCES - 1), st.floats(0, 1)),
    st.tuples(st.just("trim"), st.integers(0, SEQUENCES - 1), st.floats(0, 1)),
    st.tuples(st.just("drop"), st.integers(0, SEQUENCES - 1), st.just(0)),
)


class Pool:
    """A pool over cells that know their holders."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime(context_tokens=1000, sequences=SEQUENCES)
        self.pool = SequencePool(self.runtime)

    def create(self, tokens: int) -> LiveSequence:
        live = self.pool.create(*_prompt())
        self.grow(live, tokens)
        return live

    def fork(self, source: LiveSequence, tokens: int) -> LiveSequence:
        return self.pool.fork(source, tokens, *_prompt())

    def grow(self, live: LiveSequence, tokens: int) -> None:
        self.runtime.batch.clear()
        self.runtime.batch.add(np.arange(tokens, dtype=np.int32), start=live.length, sequence=live.id, output=False)
        self.runtime.decode()
        live.length += tokens

    def take_over(self, live: LiveSequence, tokens: int) -> None:
        live.busy = False
        self.pool.take_over(live, tokens, *_prompt())

    def held_by_others(self, live: LiveSequence) -> int:
        """Leading cells of ``live`` that are another's, too."""
        others = {id(cell) for other in self.pool if other is not live for cell in self.runtime.cells[other.id]}
        return sum(id(cell) in others for cell in self.runtime.cells[live.id])

    def check(self) -> None:
        assert self.pool.used_cells == self.runtime.used_cells
        for live in self.pool:
            assert self.pool.common_tokens(live) == self.held_by_others(live)
            assert (live.shared_with is None) == (live.shared == 0)


def _prompt() -> tuple[Prompt, TokenBuffer]:
    tokens = np.zeros(1, dtype=np.int32)
    return Prompt(tokens=tokens), TokenBuffer(tokens, spare=0)


def test_cells_that_two_forks_share_count_once_when_their_source_is_cut_before_them() -> None:
    """
    source  |== 10 ==|.........|     cut behind 10 of 16
    longer  |== 10 ==|= 2 =|= 2 =|   forked at 14
    shorter |== 10 ==|= 2 =|         forked at 12
    """
    made = Pool()
    source = made.create(16)
    made.fork(source, 14)
    made.fork(source, 12)
    made.take_over(source, 10)
    assert made.runtime.used_cells == 14
    made.check()


def test_cells_of_the_sources_own_source_stay_counted_there() -> None:
    made = Pool()
    first = made.create(16)
    second = made.fork(first, 12)
    made.grow(second, 4)
    third = made.fork(second, 14)
    made.take_over(second, 6)
    assert (third.shared, third.shared_with) == (12, first)
    assert made.runtime.used_cells == 16 + 2
    made.check()


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=30))
def test_whatever_is_forked_cut_and_dropped(script: list[tuple[str, int, float]]) -> None:
    made = Pool()
    made.create(9)
    for step, number, amount in script:
        lives = list(made.pool)
        if not lives:
            made.create(9)
            continue
        live = lives[number % len(lives)]
        if step == "grow":
            made.grow(live, int(amount))
        elif step == "fork" and made.pool.has_free_id and live.length:
            made.fork(live, max(1, round(amount * live.length)))
        elif step == "trim":
            tokens, before = round(amount * live.length), made.pool.free_cells
            freed = made.pool.gives_up(live, tokens)
            made.take_over(live, tokens)
            assert made.pool.free_cells == before + freed
        elif step == "drop":
            made.pool.drop(live)
        made.check()
