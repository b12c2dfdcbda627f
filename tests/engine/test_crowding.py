"""Which idle sequences leave before a call: values in, sequences out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.plan import Speeds
from anchorline.engine.cells import CellMap, Runs, reach
from anchorline.engine.crowding import Ahead, Idle, choose_leaving, most_saved

SPEEDS = Speeds(prefill_seconds_per_token_cell=1e-9)
PREFILL = Ahead(imported_tokens=0, computed_tokens=1_000)


def idle(sequence: int, *cells: tuple[int, int], restore_seconds: float = 1e-3) -> Idle:
    return Idle(sequence=sequence, cells=cells, restore_seconds=restore_seconds)


def test_a_long_prefill_is_worth_more_than_a_restore() -> None:
    assert choose_leaving([idle(1, (0, 8_000))], [], PREFILL, SPEEDS) == (1,)


def test_a_short_one_is_not() -> None:
    short = Ahead(imported_tokens=0, computed_tokens=100)
    assert choose_leaving([idle(1, (0, 8_000))], [], short, SPEEDS) == ()


def test_where_a_restore_takes_long_the_sequence_stays() -> None:
    assert choose_leaving([idle(1, (0, 8_000), restore_seconds=0.01)], [], PREFILL, SPEEDS) == ()


def test_without_a_measured_slope_all_stay() -> None:
    assert choose_leaving([idle(1, (0, 100_000), restore_seconds=0.0)], [], PREFILL, Speeds()) == ()


def test_what_lies_below_cells_in_use_stays_unless_its_cells_are_needed() -> None:
    below, running = idle(1, (0, 8_000)), ((8_000, 10_000),)
    assert choose_leaving([below], [running], PREFILL, SPEEDS) == ()
    long = Ahead(imported_tokens=0, computed_tokens=8_000)
    assert choose_leaving([below], [running], long, SPEEDS) == (1,)
    imported = Ahead(imported_tokens=6_000, computed_tokens=1_000)
    assert choose_leaving([below], [running], imported, SPEEDS) == (1,)


def test_the_highest_leaves_alone_where_the_other_is_dear() -> None:
    dear, cheap = idle(1, (0, 8_000), restore_seconds=1.0), idle(2, (8_000, 16_000))
    assert choose_leaving([dear, cheap], [], PREFILL, SPEEDS) == (2,)


def test_all_leave_together_where_each_alone_would_change_little() -> None:
    """Attention ends below them only once the last of them has gone."""
    many = [idle(number, (number * 2_000, number * 2_000 + 2_000), restore_seconds=1.5e-3) for number in range(4)]
    assert set(choose_leaving(many, [], PREFILL, SPEEDS)) == {0, 1, 2, 3}


def test_cells_that_are_shared_with_one_in_use_are_not_freed() -> None:
    assert choose_leaving([idle(1, (0, 8_000))], [((0, 8_000),)], PREFILL, SPEEDS) == ()


Pool = tuple[list[Idle], list[Runs]]
"""Idle sequences, and the cells of others."""


@st.composite
def pools(draw: st.DrawFn, longest_restore: float = 0.05) -> Pool:
    cells, number = CellMap(), draw(st.integers(1, 5))
    for sequence in range(number):
        cells.resize(sequence, draw(st.integers(1, 20_000)))
    busy, order = draw(st.integers(0, number)), draw(st.permutations(range(number)))
    restores = st.floats(0, longest_restore)
    return (
        [idle(sequence, *cells.runs(sequence), restore_seconds=draw(restores)) for sequence in order[busy:]],
        [cells.runs(sequence) for sequence in order[:busy]],
    )


aheads = st.builds(Ahead, imported_tokens=st.integers(0, 10_000), computed_tokens=st.integers(1, 20_000))


def paid(pool: Pool, gone: Collection[int], ahead: Ahead, slope: float) -> float:
    """What the call pays for the cells of others and its own, and those that come back for their restores."""
    resting, staying = pool
    held = [*staying, *(each.cells for each in resting if each.sequence not in gone)]
    ends = reach(held, ahead.imported_tokens) + reach(held, ahead.imported_tokens + ahead.computed_tokens)
    restores = sum(each.restore_seconds for each in resting if each.sequence in gone)
    return ends / 2 * ahead.computed_tokens * slope + restores


@given(pools(), aheads, st.floats(0, 1e-8))
def test_what_leaves_saves_time(pool: Pool, ahead: Ahead, slope: float) -> None:
    leaving = choose_leaving(*pool, ahead, Speeds(prefill_seconds_per_token_cell=slope))
    assert set(leaving) <= {each.sequence for each in pool[0]}
    if leaving:
        assert paid(pool, leaving, ahead, slope) < paid(pool, (), ahead, slope)


@given(pools(longest_restore=0.0), aheads, st.floats(1e-10, 1e-8))
def test_where_restores_are_free_nothing_stays_that_costs(pool: Pool, ahead: Ahead, slope: float) -> None:
    leaving = choose_leaving(*pool, ahead, Speeds(prefill_seconds_per_token_cell=slope))
    every = [each.sequence for each in pool[0]]
    assert paid(pool, leaving, ahead, slope) == pytest.approx(paid(pool, every, ahead, slope))


@given(pools(), aheads, st.floats(0, 1e-8))
def test_nothing_leaves_that_would_cost_more_than_all_can_save(pool: Pool, ahead: Ahead, slope: float) -> None:
    speeds = Speeds(prefill_seconds_per_token_cell=slope)
    resting, staying = pool
    most = most_saved([each.cells for each in resting], staying, ahead, speeds)
    leaving = choose_leaving(resting, staying, ahead, speeds)
    assert sum(each.restore_seconds for each in resting if each.sequence in leaving) <= most
    free = choose_leaving([replace(each, restore_seconds=0.0) for each in resting], staying, ahead, speeds)
    assert bool(free) == (most > 0)
