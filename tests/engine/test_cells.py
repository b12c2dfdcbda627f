"""Where sequences lie: against a pool that hands out its lowest free cells one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorline.engine.cells import CellMap, count, reach


def test_a_hole_is_filled_before_the_reach_grows() -> None:
    cells = CellMap()
    for sequence, tokens in enumerate((10, 20, 5)):
        cells.resize(sequence, tokens)
    cells.remove(1)
    assert reach([cells.runs(0), cells.runs(2)]) == 35
    assert reach([cells.runs(0), cells.runs(2)], 20) == 35
    assert reach([cells.runs(0), cells.runs(2)], 21) == 36
    cells.resize(3, 22)
    assert cells.runs(3) == ((10, 30), (35, 37))


def test_only_what_lies_highest_shortens_the_reach() -> None:
    cells = CellMap()
    cells.resize(0, 10)
    cells.resize(1, 20)
    assert reach([cells.runs(1)]) == 30
    assert reach([cells.runs(0)]) == 10


def test_shared_cells_stay_with_the_other() -> None:
    cells = CellMap()
    cells.resize(0, 10)
    cells.share(0, 1, 8)
    cells.resize(1, 12)
    assert cells.runs(1) == ((0, 8), (10, 14))
    cells.remove(0)
    cells.resize(2, 3)
    assert cells.runs(2) == ((8, 10), (14, 15))


actions = st.one_of(
    st.tuples(st.just("grow"), st.integers(0, 3), st.integers(1, 9)),
    st.tuples(st.just("trim"), st.integers(0, 3), st.integers(0, 9)),
    st.tuples(st.just("share"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("remove"), st.integers(0, 3), st.none()),
)


@given(st.lists(actions, max_size=40), st.integers(0, 20))
def test_it_lies_as_the_lowest_free_cells_are_handed_out(script: list[tuple[str, int, int]], added: int) -> None:
    cells = CellMap()
    held: dict[int, list[int]] = {sequence: [] for sequence in range(4)}

    def free(number: int) -> list[int]:
        used = {cell for mine in held.values() for cell in mine}
        return [cell for cell in range(len(used) + number) if cell not in used][:number]

    for what, sequence, value in script:
        mine = held[sequence]
        if what == "grow":
            mine.extend(free(value))
            cells.resize(sequence, len(mine))
        elif what == "trim":
            del mine[value:]
            cells.resize(sequence, len(mine))
        elif what == "share" and sequence != value:
            held[value] = mine[: len(mine) // 2 + 1]
            cells.share(sequence, value, len(held[value]))
        elif what == "remove":
            mine.clear()
            cells.remove(sequence)
        for each, expected in held.items():
            runs = cells.runs(each)
            assert [cell for start, end in runs for cell in range(start, end)] == expected
            assert count(runs) == len(expected)
    used = [cell for mine in held.values() for cell in mine]
    highest = max((*used, *free(added)), default=-1)
    assert reach([cells.runs(sequence) for sequence in held], added) == highest + 1
