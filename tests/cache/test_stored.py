"""Records of the disk tier find their place in the tree, or none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from anchorline.cache.classes import CallClass
from anchorline.cache.prompt import Owners
from anchorline.cache.segment import Absence, Segment
from anchorline.cache.stored import StoredIndex, Unattached
from anchorline.cache.tree import Match, SegmentTree
from anchorline.disk.record import SegmentRecord
from anchorline.llama.interface import TokenArray
from tests.support.disk import rows_record, state_record

HEAD = rows_record(range(10, 40), owner="me")
TURN = rows_record(range(100, 120), after=HEAD, owner="me")
FORK = rows_record([7, 8, 9], after=TURN, at=TURN.start + 5, owner="me")
MINE = Owners("me")


def ids(*parts: Sequence[int]) -> TokenArray:
    return np.array([token for part in parts for token in part], np.int32)


def indexed(*records: SegmentRecord, splitting: bool = True, stateful: bool = False) -> tuple[SegmentTree, StoredIndex]:
    tree = SegmentTree(splitting=splitting, stateful=stateful)
    index = StoredIndex(tree)
    for record in records:
        index.attach(record)
    return tree, index


def spans(match: Match) -> list[tuple[int, int, bytes | None]]:
    """Of each segment that can be had: its span, and the record that it is read from."""
    return [(node.start, node.end, node.stored.record.key if node.stored else None) for node in match.path]


def test_a_history_is_known_by_the_ids_of_its_records() -> None:
    tree, index = indexed(HEAD, TURN)
    match = tree.match(ids(range(10, 40), range(100, 120), [5]), MINE)
    assert (match.restorable, match.reachable, match.seen) == (0, 50, 50)
    assert spans(match) == [(0, 30, HEAD.key), (30, 50, TURN.key)]
    assert tree.match(ids(range(10, 40), range(100, 110), [5]), MINE).reachable == 40
    assert tree.ghost_tokens == 0
    assert not index.unattached


def test_a_fork_inside_of_a_record_splits_its_node_and_both_parts_are_read_from_it() -> None:
    tree, _ = indexed(HEAD, TURN, FORK)
    forked = tree.match(ids(range(10, 40), range(100, 105), [7, 8, 9]), MINE)
    assert spans(forked) == [(0, 30, HEAD.key), (30, 35, TURN.key), (35, 38, FORK.key)]
    straight = tree.match(ids(range(10, 40), range(100, 120)), MINE)
    assert spans(straight) == [(0, 30, HEAD.key), (30, 35, TURN.key), (35, 50, TURN.key)]


def test_the_ids_of_a_record_are_told_again_from_its_nodes() -> None:
    tree, _ = indexed(HEAD, TURN, FORK)
    segment = tree.match(ids(range(10, 40), range(100, 120)), MINE).path[-1]
    assert segment.stored is not None
    assert segment.stored.record.tokens.size == 0
    assert segment.stored.whole_record().tokens.tolist() == list(range(100, 120))


def test_a_state_belongs_to_the_end_of_its_rows() -> None:
    tree, _ = indexed(HEAD, TURN, state_record(TURN), stateful=True)
    path = tree.match(ids(range(10, 40), range(100, 120)), MINE).path
    assert [segment.has_reachable_state for segment in path] == [False, True]


def test_nodes_that_were_seen_meanwhile_are_taken_over() -> None:
    tree = SegmentTree()
    whole = ids(range(10, 40), range(100, 120))
    (node,) = tree.descend(whole, 50, MINE, from_node=tree.root)
    assert tree.ghost_tokens
    index = StoredIndex(tree)
    index.attach(HEAD)
    index.attach(TURN)
    assert node.start == 30
    assert [segment.is_ghost for segment in tree] == [False, False]
    assert tree.ghost_tokens == 0


def test_the_class_is_that_of_the_calls_that_held_it() -> None:
    tree, _ = indexed(HEAD)
    assert [node.call_class for node in tree] == [CallClass.CONVERSATION]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([TURN], Unattached.ORPHAN),
        ([HEAD, rows_record([1], after=HEAD, at=31, owner="me")], Unattached.CONFLICT),
        ([HEAD, rows_record([1], after=HEAD, owner="someone")], Unattached.CONFLICT),
        ([HEAD, state_record(HEAD), rows_record([1], after=state_record(HEAD), owner="me")], Unattached.CONFLICT),
        ([rows_record([1], at=3)], Unattached.CONFLICT),
    ],
    ids=["without its parent", "behind its parent", "of another tenant", "behind a state", "without a root"],
)
def test_what_fits_nowhere_is_counted_and_not_used(records: list[SegmentRecord], reason: Unattached) -> None:
    tree, index = indexed(*records, stateful=True)
    assert index.unattached == {reason: 1}
    assert index.find(records[-1].key) is None
    assert len(list(tree)) == (1 if len(records) > 1 else 0)


def test_what_is_common_is_seen_by_those_who_share_it() -> None:
    common = rows_record(range(10, 40))
    tree, _ = indexed(common, rows_record([1, 2], after=common, owner="me"))
    tokens = ids(range(10, 40), [1, 2])
    assert tree.match(tokens, Owners("me", common_tokens=30)).reachable == 32
    assert tree.match(tokens, Owners("you", common_tokens=30)).reachable == 30
    assert tree.match(tokens, Owners("me")).seen == 0


def test_a_whole_tree_takes_records_as_chunks() -> None:
    tree, index = indexed(HEAD, TURN, FORK, splitting=False)
    tokens = ids(range(10, 40), range(100, 120))
    assert tree.match_chunks(tokens, [30, 50], MINE).reachable == 50
    assert tree.match_chunks(tokens, [30, 35, 50], MINE).reachable == 30
    assert index.unattached == {Unattached.CONFLICT: 1}


# -- going ----------------------------------------------------------------------------------------


def leaf(tree: SegmentTree) -> Segment:
    return tree.match(ids(range(10, 40), range(100, 120)), MINE).path[-1]


def test_what_is_lost_is_a_ghost_and_what_lies_behind_waits_for_it() -> None:
    tree, index = indexed(HEAD, TURN, state_record(HEAD), state_record(TURN), stateful=True)
    index.lose([HEAD.key], Absence.RESTORE_FAILED)
    match = tree.match(ids(range(10, 40), range(100, 120)), MINE)
    assert (match.reachable, match.seen, match.absence) == (0, 50, Absence.RESTORE_FAILED)
    assert index.unwanted == [state_record(HEAD).key], "its state would be an orphan"
    index.complete()
    index.lose([TURN.key], Absence.EVICTED)
    assert all(node.is_ghost for node in tree)
    assert tree.ghost_tokens == 128


def test_what_went_is_not_attached_when_it_is_found_later() -> None:
    tree, index = indexed()
    index.lose([HEAD.key], Absence.EVICTED)
    index.attach(HEAD)
    assert not list(tree)


def test_a_record_stays_while_others_are_read_from_it() -> None:
    tree, index = indexed(HEAD, TURN, FORK)
    tail = leaf(tree)
    index.discard_rows(tail, may_go={tail}.__contains__)
    assert tail.is_reachable
    assert tail.parent is not None
    index.discard_rows(tail, may_go={tail, tail.parent}.__contains__)
    assert (tail.is_ghost, tail.parent.is_ghost, index.unwanted) == (True, True, [TURN.key])


def test_nodes_of_a_record_are_never_forgotten() -> None:
    tree, index = indexed(HEAD)
    (node,) = tree
    tree.forget(node)
    assert list(tree) == [node]
    index.lose([HEAD.key], Absence.EVICTED)
    tree.forget(node)
    assert not list(tree)


def test_of_an_owner_is_kept_what_nodes_are_read_from_alone() -> None:
    long = rows_record([*range(10, 40), *range(100, 110)], owner="me")
    theirs = rows_record([1, 2], owner="you")
    _, index = indexed(HEAD, TURN, long, theirs)
    assert len(index) == 4
    assert set(index.lose_owned("me")) == {HEAD.key, TURN.key}
    assert (len(index), index.find(theirs.key) is not None) == (3, True)
