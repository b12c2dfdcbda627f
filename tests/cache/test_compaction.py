"""Which segments are merged, and what the cache holds afterwards."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.cache.chains import restore_spans
from anchorline.cache.compaction import Joint, Run, choose_merge, runs_of
from anchorline.cache.prompt import Owners
from anchorline.cache.rows import Rows
from anchorline.cache.segment import Segment
from anchorline.cache.tree import SegmentTree
from anchorline.llama.interface import TokenArray
from tests.cache.test_prefix_cache import BYTES_PER_TOKEN, conversation, export, make_cache, save

LIMIT = 7


def run_of(tokens: int, joint: Joint = Joint.FREE, *, shared: bool = False, start: int = 0) -> Run:
    rows = Rows(memoryview(b""), start, start + tokens + shared, lambda: None)
    segment = Segment(None, start, np.zeros(tokens, np.int32), owner=None)
    segment.rows = rows.view(tokens)
    if shared:
        rows.view(1)
    return Run((segment,), rows, joint)


runs = st.builds(
    run_of, st.integers(1, 500), st.sampled_from([Joint.FREE, Joint.FORK, Joint.ANCHOR]), shared=st.booleans()
)


def merge_all_of(runs: list[Run], limit: int, *, largest_tokens: int = 1 << 30) -> tuple[list[Run], int]:
    """The runs that are left in the end, and the tokens that were copied."""
    left, copied = list(runs), 0
    while chosen := choose_merge(left, limit, largest_tokens=largest_tokens):
        first = next(index for index, run in enumerate(left) if run is chosen[0])
        assert all(run is left[first + offset] for offset, run in enumerate(chosen)), "not neighbours"
        tokens = sum(run.tokens for run in chosen)
        assert tokens <= largest_tokens
        copied += tokens
        left[first : first + len(chosen)] = [run_of(tokens, chosen[-1].joint, shared=chosen[0].is_shared)]
    return left, copied


@given(st.lists(runs, max_size=30), st.integers(1, 8))
def test_no_more_than_the_limit_is_left_whatever_the_chain_is(chain: list[Run], limit: int) -> None:
    left, _ = merge_all_of(chain, limit)
    assert len(left) <= limit
    assert sum(run.tokens for run in left) == sum(run.tokens for run in chain)
    assert len(left) == len(chain) or len(chain) > limit


@given(st.lists(st.builds(run_of, st.integers(1, 500)), min_size=1, max_size=20))
def test_a_head_stays_by_itself_while_anything_else_can_be_merged(tail: list[Run]) -> None:
    head = run_of(900, Joint.ANCHOR)
    assert merge_all_of([head, *tail], 2)[0][0] is head


@given(st.lists(runs, max_size=10), st.lists(runs, min_size=1, max_size=10), st.integers(1, 8))
def test_what_is_common_to_all_tenants_is_never_merged_with_what_is_not(
    common: list[Run], own: list[Run], limit: int
) -> None:
    chain = [*common, run_of(40, Joint.OWNER), *own]
    left, _ = merge_all_of(chain, limit)
    assert len(left) <= max(limit, 2)
    ends = list(accumulate(run.tokens for run in left))
    assert sum(run.tokens for run in common) + 40 in ends


@given(st.lists(runs, max_size=30), st.integers(1, 2_000))
def test_no_copy_is_larger_than_there_is_room(chain: list[Run], largest: int) -> None:
    merge_all_of(chain, 2, largest_tokens=largest)


def test_forks_stay_where_histories_part_while_anything_else_can_be_merged() -> None:
    chain = [run_of(1), run_of(1, Joint.FORK), run_of(500), run_of(500), run_of(1, Joint.FORK), run_of(1)]
    assert [run.tokens for run in merge_all_of(chain, 4)[0]] == [2, 1001, 1]


def test_a_fork_far_back_does_not_make_every_turn_copy_all_since() -> None:
    forks = [run_of(100, Joint.FORK) for _ in range(LIMIT - 1)]
    chain, copied = [run_of(900, Joint.ANCHOR), *forks], 0
    for _ in range(200):
        chain, more = merge_all_of([*chain, run_of(50)], LIMIT)
        copied += more
    assert copied <= 8 * 200 * 50


def test_rows_that_another_history_views_are_not_torn_from_it() -> None:
    """A group that began with the shared run would cost the other history one more import."""
    chain = [run_of(9), run_of(10, shared=True), run_of(10), run_of(5)]
    assert [run.tokens for run in merge_all_of(chain, 3)[0]] == [34]
    chain[0] = run_of(400)
    assert [run.tokens for run in merge_all_of(chain, 3)[0]] == [400, 10, 15]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=250, max_size=250))
def test_a_token_is_copied_a_few_times_however_long_the_conversation(turns: list[int]) -> None:
    chain: list[Run] = []
    copied = 0
    for turn in turns:
        chain, more = merge_all_of([*chain, run_of(turn)], LIMIT)
        copied += more
    assert len(chain) <= LIMIT
    assert copied <= 6 * sum(turns)


def turns_of(count: int, *, name: int = 1) -> list[TokenArray]:
    full = conversation(name, 400, 400 + 50 * count).tokens
    return [full[: 400 + 50 * turn] for turn in range(1, count + 1)]


def merge_all(budget_tokens: int = 100_000, turns: int = 30):  # type: ignore[no-untyped-def]
    cache = make_cache(budget_tokens)
    prompt = conversation(1, 400, 400 + 50 * turns)
    for tokens in turns_of(turns):
        for _ in cache.save(prompt, tokens, export):
            pass
        while cache.merge(prompt, tokens, export, limit=LIMIT):
            pass
        assert cache.arena.used_bytes <= cache.arena.budget_bytes
    return cache, prompt


def chain_length(tree: SegmentTree, tokens: TokenArray) -> int:
    return len(runs_of(tree.match(tokens, Owners()).chain, None))


def test_a_long_chain_is_few_segments_and_no_more_bytes() -> None:
    cache, prompt = merge_all()
    assert chain_length(cache.tree, prompt.tokens) <= LIMIT
    assert cache.arena.used_bytes == len(prompt) * BYTES_PER_TOKEN
    spans = restore_spans(cache.match(prompt, prompt.tokens), 0, len(prompt))
    assert spans[-1].end == len(prompt)
    assert all(left.end == right.start for left, right in pairwise(spans))
    assert spans[0].end == 400, "the head is a segment of its own"


def test_another_conversation_restores_the_head_alone() -> None:
    cache, _ = merge_all()
    other = conversation(2, 400, 700)
    (span,) = restore_spans(cache.match(other, other.tokens), 0, 400)
    assert span.rows.tokens == 400


def test_without_room_for_a_copy_the_chain_stays_as_it_is_and_that_is_counted() -> None:
    turns = 12
    cache, prompt = merge_all(budget_tokens=400 + 50 * turns, turns=turns)
    assert cache.match(prompt, prompt.tokens).restorable == len(prompt)
    assert cache.counters.unmerged["no_room"] > 0
    assert set(cache.counters.unsaved) <= {"pin_over_limit"}


def test_a_large_copy_evicts_nothing_and_a_small_one_does() -> None:
    cache = make_cache(4_000, longest_piece=2_000)
    prompt = conversation(1, 0, 2_000)
    for end in (900, 1_800, 1_850, 1_900, 1_950, 2_000):
        for _ in cache.save(prompt, prompt.tokens[:end], export):
            pass
    save(cache, conversation(2, 0, 1_990))
    cache.note_call(prompt)
    assert cache.merge(prompt, prompt.tokens, export, limit=3)
    assert cache.counters.evictions > 0
    save(cache, conversation(2, 0, 1_990))
    evictions = cache.counters.evictions
    assert not cache.merge(prompt, prompt.tokens, export, limit=1)
    assert cache.counters.evictions == evictions
    assert cache.counters.unmerged == {"no_room": 1}


def test_only_what_the_sequence_holds_is_merged() -> None:
    """The chain goes on behind the place where the live sequence parts from it."""
    cache = make_cache(10_000)
    prompt = conversation(1, 0, 300)
    for end in (100, 200, 300):
        for _ in cache.save(prompt, prompt.tokens[:end], export):
            pass
    parted = prompt.tokens.copy()
    parted[250:] = 9
    exported: list[tuple[int, int]] = []

    def noting(start: int, end: int, allocate):  # type: ignore[no-untyped-def]
        exported.append((start, end))
        return export(start, end, allocate)

    assert cache.merge(prompt, parted, noting, limit=1)
    assert exported == [(0, 200)]
