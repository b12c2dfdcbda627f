"""Segments of several tenants, and of all of them, in one cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.chains import restore_spans
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.prompt import Owners, Prompt
from anchorline.cache.tree import SegmentTree
from tests.cache.test_prefix_cache import conversation, export, make_cache, save
from tests.cache.test_tree import agreement, histories, rows_for
from tests.support.fake_runtime import tokens_of

HEAD = 400

owned_histories = st.tuples(st.sampled_from(["ann", "ben"]), st.sampled_from([0, 3, 9]), histories)
"""A tenant, how much of its history is common to all, and the ids."""


def visible_agreement(left: tuple[str, int, list[int]], right: tuple[str, int, list[int]]) -> int:
    """On how many leading ids two histories agree, of those that have the same owner in both."""
    agreed = agreement(left[2], right[2])
    return agreed if left[:2] == right[:2] else min(agreed, left[1], right[1])


@given(st.lists(owned_histories, min_size=1, max_size=10), owned_histories)
def test_a_match_is_the_longest_agreement_with_what_its_tenant_sees(
    kept: Sequence[tuple[str, int, list[int]]], asked: tuple[str, int, list[int]]
) -> None:
    tree = SegmentTree()
    for tenant, common, ids in kept:
        for node in tree.descend(tokens_of(ids), len(ids), Owners(tenant, common), from_node=tree.root):
            if node.rows is None:
                tree.keep(node, rows_for(node.start, node.end))
    match = tree.match(tokens_of(asked[2]), Owners(*asked[:2]))
    assert match.restorable == match.seen == max(visible_agreement(history, asked) for history in kept)
    assert all(segment.owner == Owners(*asked[:2]).at(segment.start) for segment in match.chain)


def common_head(name: int, length: int, *, tenant: str = "ann") -> Prompt:
    """A conversation of a tenant whose head is common to all."""
    return replace(conversation(name, HEAD, length, pin=False), tenant=tenant, common_tokens=HEAD)


def restorable(cache: PrefixCache, prompt: Prompt) -> int:
    return cache.match(prompt, prompt.tokens).restorable


def test_another_tenant_finds_the_common_head_and_nothing_behind_it() -> None:
    cache = make_cache(10_000)
    save(cache, common_head(1, 600))
    assert restorable(cache, common_head(1, 600)) == 600
    assert restorable(cache, common_head(1, 600, tenant="ben")) == HEAD
    assert restorable(cache, replace(common_head(1, 600, tenant="ben"), common_tokens=0)) == 0


def test_a_merge_stops_where_the_common_head_ends() -> None:
    cache = make_cache(10_000)
    prompt = common_head(1, 600)
    for end in (200, HEAD, 500, 600):
        for _ in cache.save(prompt, prompt.tokens[:end], export):
            pass
    while cache.merge(prompt, prompt.tokens, export, limit=1):
        pass
    spans = restore_spans(cache.match(prompt, prompt.tokens), 0, 600)
    assert [(span.rows.start, span.rows.end) for span in spans] == [(0, HEAD), (HEAD, 600)]


def test_a_head_that_is_saved_again_is_an_export_of_its_own() -> None:
    """What was kept when the save began was lost before it got there."""
    cache = make_cache(10_000)
    save(cache, common_head(1, 600))
    longer = common_head(1, 700)
    call_class = cache.note_call(longer)
    state = cache.capture(
        longer, longer.tokens[:100], lambda allocate: allocate(8), call_class=call_class, ends_reply=False
    )
    assert state is not None
    saving = cache.save(longer, longer.tokens, export, {100: state})
    next(saving)
    lost = next(node for node in cache.match(longer, longer.tokens).chain if node.start == 100)
    cache.reject(lost)
    assert restorable(cache, longer) == 100
    list(saving)
    spans = restore_spans(cache.match(longer, longer.tokens), 100, 700)
    assert [(span.rows.start, span.rows.end) for span in spans] == [(100, HEAD), (HEAD, 700)]
