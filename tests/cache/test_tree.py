"""The segment tree against a plain list of histories, and the order in which rows may go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.classes import CallClass
from anchorline.cache.eviction import Victims
from anchorline.cache.policy import Moment, least_recently_used
from anchorline.cache.prompt import Owners
from anchorline.cache.rows import Rows
from anchorline.cache.segment import Absence, Segment
from anchorline.cache.tree import GHOST_TOKENS_MIN, SegmentTree
from tests.support.fake_runtime import tokens_of

MINE = Owners()

histories = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=120)


def rows_for(start: int, end: int, freed: list[tuple[int, int]] | None = None) -> Rows:
    log: list[tuple[int, int]] = [] if freed is None else freed
    return Rows(memoryview(bytearray(end - start)), start, end, lambda: log.append((start, end)))


def keep_all(tree: SegmentTree, ids: list[int], freed: list[tuple[int, int]] | None = None) -> None:
    """Keep the rows of ``ids`` in one export of what is missing."""
    path = tree.descend(tokens_of(ids), len(ids), MINE, from_node=tree.root)
    missing = [node for node in path if node.rows is None]
    if missing:
        rows = rows_for(missing[0].start, missing[-1].end, freed)
        for node in missing:
            tree.keep(node, rows)


def agreement(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@given(st.lists(histories, min_size=1, max_size=10), histories)
def test_match_is_the_longest_agreement_with_any_history(kept: list[list[int]], asked: list[int]) -> None:
    tree = SegmentTree()
    for ids in kept:
        keep_all(tree, ids)
    match = tree.match(tokens_of(asked), MINE)
    assert match.restorable == match.seen == max(agreement(ids, asked) for ids in kept)
    ends = [segment.end for segment in match.chain]
    assert ends == sorted(ends)
    spelled = [token for segment in match.chain for token in segment.tokens.tolist()]
    assert spelled[: match.restorable] == asked[: match.restorable]


@given(st.lists(histories, min_size=1, max_size=10))
def test_tokens_are_stored_once(kept: list[list[int]]) -> None:
    tree = SegmentTree()
    for ids in kept:
        keep_all(tree, ids)
    unique = {tuple(ids[:end]) for ids in kept for end in range(1, len(ids) + 1)}
    assert sum(int(node.tokens.size) for node in tree) == len(unique)


def victims_of(tree: SegmentTree) -> Victims:
    return Victims(
        tree, least_recently_used, Moment(tick=tree.tick, turn=tree.turn, stateful=False, bytes_per_token=1.0)
    )


def test_a_split_export_is_freed_with_its_last_view() -> None:
    tree = SegmentTree()
    freed: list[tuple[int, int]] = []
    keep_all(tree, [1, 2, 3, 4, 5, 6], freed)
    keep_all(tree, [1, 2, 3, 9], freed)
    victims = victims_of(tree)
    assert victims.drop_next()
    assert freed == [(3, 4)]
    assert victims.drop_next()
    assert freed == [(3, 4), (0, 6)]
    assert not victims.drop_next()


def test_children_go_before_their_parents_even_when_more_valuable() -> None:
    tree = SegmentTree()
    keep_all(tree, [1, 2, 3])
    keep_all(tree, [1, 2, 3, 4, 5])
    chain = tree.match(tokens_of([1, 2, 3, 4, 5]), MINE).chain
    for _ in range(50):
        tree.touch(chain[1:], CallClass.CONVERSATION)
    victims = victims_of(tree)
    assert victims.drop_next()
    assert tree.match(tokens_of([1, 2, 3, 4, 5]), MINE).restorable == 3
    assert victims.drop_next()
    match = tree.match(tokens_of([1, 2, 3, 4, 5]), MINE)
    assert (match.restorable, match.seen, match.absence) == (0, 5, Absence.EVICTED)


@pytest.mark.parametrize("hold", ["leases", "pins"])
def test_held_segments_and_their_parents_stay(hold: str) -> None:
    tree = SegmentTree()
    keep_all(tree, [1, 2, 3])
    keep_all(tree, [1, 2, 3, 4, 5])
    tail = tree.match(tokens_of([1, 2, 3, 4, 5]), MINE).chain[-1]
    setattr(tail, hold, 1)
    assert not victims_of(tree).drop_next()
    setattr(tail, hold, 0)
    assert victims_of(tree).drop_next()


def test_a_split_leaves_the_hold_on_the_tail_and_the_upper_part_alive() -> None:
    tree = SegmentTree()
    keep_all(tree, [1, 2, 3, 4])
    [node] = tree.match(tokens_of([1, 2, 3, 4]), MINE).chain
    node.pins = 1
    keep_all(tree, [1, 2, 9])
    victims = victims_of(tree)
    assert victims.drop_next()
    assert not victims.drop_next()
    assert tree.match(tokens_of([1, 2, 3, 4]), MINE).restorable == 4


def test_both_parts_of_a_split_were_missed_as_often() -> None:
    tree = SegmentTree()
    keep_all(tree, [1, 2, 3, 4])
    tree.touch(tree.match(tokens_of([1, 2, 3, 4]), MINE).chain, CallClass.COLD, resident_tokens=4)
    keep_all(tree, [1, 2, 9])
    assert [node.needed for node in tree.match(tokens_of([1, 2, 3, 4]), MINE).chain] == [0.5, 0.5]


def test_the_least_by_the_key_goes_first() -> None:
    tree = SegmentTree()
    for first in (1, 2, 3):
        tree.touch([], CallClass.COLD)
        keep_all(tree, [first, 7, 7])
    tree.touch(tree.match(tokens_of([1, 7, 7]), MINE).chain, CallClass.COLD)
    assert victims_of(tree).drop_next()
    assert tree.match(tokens_of([2, 7, 7]), MINE).restorable == 0
    assert tree.match(tokens_of([1, 7, 7]), MINE).restorable == 3


def test_nothing_goes_that_is_worth_as_much() -> None:
    tree = SegmentTree()
    keep_all(tree, [1, 7, 7])
    assert not victims_of(tree).drop_next(below=0.0)
    assert victims_of(tree).drop_next(below=0.5)


def test_what_one_export_holds_goes_together_so_that_its_bytes_are_free() -> None:
    tree = SegmentTree()
    freed: list[tuple[int, int]] = []
    keep_all(tree, [1, 2, 3, 4, 5, 6], freed)
    tree.descend(tokens_of([1, 2, 3, 9]), 4, MINE, from_node=tree.root)
    assert len(tree.kept) == 2
    assert victims_of(tree).drop_next()
    assert freed == [(0, 6)]
    assert not tree.kept


def test_whole_tree_keeps_chunkings_apart() -> None:
    tree = SegmentTree(splitting=False)
    ids = [1, 2, 3, 4, 5, 6]
    path = tree.descend(tokens_of(ids), 6, MINE, from_node=tree.root)
    assert [node.end for node in path] == [6]
    tree.keep(path[0], rows_for(0, 6))
    assert tree.match_chunks(tokens_of(ids), [6], MINE).restorable == 6
    assert tree.match_chunks(tokens_of(ids), [3, 6], MINE).restorable == 0
    first = tree.descend(tokens_of(ids), 3, MINE, from_node=tree.root)[-1]
    tree.keep(first, rows_for(0, 3))
    match = tree.match_chunks(tokens_of(ids), [3, 6], MINE)
    assert (match.restorable, match.seen) == (3, 3)


def test_ghosts_are_forgotten_past_their_limit_and_kept_rows_are_not() -> None:
    tree = SegmentTree(ghost_tokens_limit=5 * GHOST_TOKENS_MIN)
    keep_all(tree, [5, 5, 5])
    for first in range(10, 30):
        tree.touch([], CallClass.COLD)
        tree.descend(tokens_of([first, 1, 1]), 3, MINE, from_node=tree.root)
        tree.prune_ghosts()
        assert tree.ghost_tokens <= 5 * GHOST_TOKENS_MIN
    assert tree.match(tokens_of([5, 5, 5]), MINE).restorable == 3
    assert tree.match(tokens_of([29, 1, 1]), MINE).seen == 3
    assert tree.match(tokens_of([10, 1, 1]), MINE).seen == 0


def test_eviction_looks_at_kept_segments_alone() -> None:
    """However many histories were seen, making room costs by what is kept."""
    tree = SegmentTree()
    keep_all(tree, [5, 5, 5])
    for first in range(100, 400):
        tree.descend(tokens_of([first, 1, 1]), 3, MINE, from_node=tree.root)
    judged: list[Segment] = []

    def key(segment: Segment, moment: Moment) -> float:
        judged.append(segment)
        return 0.0

    assert Victims(tree, key, Moment(tick=0, turn=0, stateful=False, bytes_per_token=1.0)).drop_next()
    assert len(judged) == 1
