"""The oracle's trie against a naive one, and at the size of real traces."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchorline.bench import oracle
from anchorline.bench.oracle import CutOracle, Oracle, PrefixTrie, as_tokens, common_prefix

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=12)


def naive_prefix(left: list[int], right: list[int]) -> int:
    shared = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        shared += 1
    return shared


@given(SEQUENCES, st.lists(st.integers(0, 2), max_size=12))
def test_trie_finds_what_a_search_of_all_sequences_finds(added: list[list[int]], asked: list[int]) -> None:
    trie = PrefixTrie()
    for count, sequence in enumerate(added):
        expected = max((naive_prefix(asked, other) for other in added[:count]), default=0)
        assert trie.longest_prefix(as_tokens(asked)) == expected
        trie.add(as_tokens(sequence))
    for sequence in added:
        assert trie.longest_prefix(as_tokens(sequence)) == len(sequence)


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40), st.integers(1, 5))
def test_common_prefix_over_block_borders(left: list[int], right: list[int], block: int) -> None:
    before = oracle._BLOCK
    oracle._BLOCK = block
    try:
        assert common_prefix(as_tokens(left), as_tokens(right)) == naive_prefix(left, right)
    finally:
        oracle._BLOCK = before


def test_a_repeated_prompt_still_costs_one() -> None:
    costs = Oracle()
    prompt = as_tokens([1, 2, 3, 4])
    assert [costs.cost(prompt), costs.cost(prompt)] == [4, 1]
    assert costs.total_tokens == 5


def test_a_reply_counts_as_seen() -> None:
    costs = Oracle()
    prompt = as_tokens([1, 2, 3])
    costs.cost(prompt)
    costs.reply(prompt, as_tokens([7, 8]))
    assert costs.cost(as_tokens([1, 2, 3, 7, 8, 9])) == 1
    assert costs.cost(as_tokens([1, 2, 3, 7, 5, 9])) == 2


def test_the_prefix_of_a_longer_prompt_costs_one() -> None:
    costs = Oracle()
    costs.cost(as_tokens(range(100)))
    assert costs.cost(as_tokens(range(60))) == 1


def test_a_session_of_many_long_prompts() -> None:
    """150 prompts growing to 190K tokens: what the longest recorded session asks for."""
    history = np.random.default_rng(0).integers(0, 50_000, 190_000, dtype=np.int32)
    costs = Oracle()
    step = history.size // 150
    for end in range(step, history.size, step):
        prompt = np.concatenate((history[:end], as_tokens([-1, -2])))
        assert costs.cost(prompt) == step + 2


def test_at_cuts_a_prompt_costs_what_lies_behind_the_last_shared_cut() -> None:
    oracle = CutOracle()
    assert oracle.cost(as_tokens(range(100)), [40, 90]) == 100
    assert oracle.cost(as_tokens(range(120)), [40, 90, 110]) == 30
    parted = as_tokens([*range(95), 7, 7, 7])
    assert oracle.cost(parted, [40, 90]) == 8
    assert oracle.cost(as_tokens([*range(50), *[7] * 50]), [40]) == 60
    assert oracle.cost(as_tokens(range(40)), [40]) == 40
    assert oracle.total_tokens == 100 + 30 + 8 + 60 + 40
