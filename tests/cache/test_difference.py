"""Where a prompt leaves an earlier one, and what it repeats behind that place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.difference import BLOCK_TOKENS, Difference, find_difference, goes_on_with, repeated_tokens
from anchorline.cache.prompt import Owners
from anchorline.cache.tree import SegmentTree
from tests.cache.test_tree import agreement, histories
from tests.support.fake_runtime import tokens_of

LATER = list(range(100, 100 + 10 * BLOCK_TOKENS))
"""What both prompts of a test hold behind the place where they part."""


def differ(rest: list[int], *earlier: list[int]) -> Difference | None:
    return find_difference(tokens_of(rest), 50, [tokens_of(history) for history in earlier])


def test_what_the_earlier_prompt_holds_too_is_lost_wherever_it_stands() -> None:
    """A changed id in front, as many as one likes put in or taken out."""
    for changed in ([7], [], [7] * 40):
        found = differ([8, *changed, *LATER], [9, *LATER])
        assert found is not None
        assert found.position == 50
        assert len(LATER) - BLOCK_TOKENS <= found.lost_tokens <= len(LATER)
        assert found.instead[:3] == (9, 100, 101)


def test_new_text_behind_the_difference_is_not_lost() -> None:
    found = differ([8, *range(1000, 1400)], [9, *LATER])
    assert (found and found.lost_tokens) == 0


@pytest.mark.parametrize("earlier", [[], [8], [8, *LATER], [8, *LATER, 5]])
def test_a_prompt_that_only_adds_to_an_earlier_one_or_begins_it_does_not_differ(earlier: list[int]) -> None:
    assert differ([8, *LATER], earlier) is None


def test_of_several_earlier_prompts_the_one_that_agrees_furthest_counts_then_the_one_that_holds_most() -> None:
    asked = [8, 8, *LATER]
    assert differ(asked, [8, 9, *LATER], [9, *LATER]) == differ(asked, [8, 9, *LATER])
    found = differ(asked, [9], [9, *LATER])
    assert found is not None
    assert found.lost_tokens > 0


small = st.lists(st.sampled_from([1, 2, 3]), max_size=80)


@given(small, small)
def test_blocks_are_found_as_a_search_through_lists_finds_them(rest: list[int], earlier: list[int]) -> None:
    held = {tuple(earlier[start : start + BLOCK_TOKENS]) for start in range(len(earlier) - BLOCK_TOKENS + 1)}
    blocks = [tuple(rest[start : start + BLOCK_TOKENS]) for start in range(0, len(rest), BLOCK_TOKENS)]
    expected = BLOCK_TOKENS * sum(block in held for block in blocks)
    assert repeated_tokens(tokens_of(rest), tokens_of(earlier)) == expected


@given(st.lists(st.tuples(st.sampled_from(["ann", "ben"]), histories), min_size=1, max_size=8), histories)
def test_a_history_goes_on_with_ids_of_its_own_tenant_alone(
    kept: list[tuple[str, list[int]]], asked: list[int]
) -> None:
    tree = SegmentTree()
    for tenant, ids in kept:
        tree.descend(tokens_of(ids), len(ids), Owners(tenant), from_node=tree.root)
    match = tree.match(tokens_of(asked), Owners("ann"))
    assert match.deepest is not None
    found = goes_on_with(match.deepest, match.seen, "ann", limit=1000).tolist()
    own = [ids for tenant, ids in kept if tenant == "ann" and agreement(ids, asked) == match.seen]
    assert bool(found) == any(len(ids) > match.seen for ids in own)
    assert not found or any(ids[match.seen : match.seen + len(found)] == found for ids in own)
