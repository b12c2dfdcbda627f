"""Caches of several models in one arena: what is parked, what goes for the one in use, and what comes back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.classes import CallClass
from anchorline.cache.host import HostArena
from anchorline.cache.parked import ParkedCaches
from anchorline.cache.pinning import AnchorOrder
from anchorline.cache.pins import PinEnd, PinRefusal
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.prompt import PinWish, Prompt
from anchorline.errors import Conflict
from anchorline.llama.interface import MemoryKind
from tests.cache.test_prefix_cache import BYTES_PER_TOKEN, conversation, make_cache, save

BUDGET_TOKENS = 2000


def parked_caches(tokens: int = BUDGET_TOKENS) -> ParkedCaches:
    return ParkedCaches(HostArena(tokens * BYTES_PER_TOKEN))


def beside(parked: ParkedCaches, *, clock: Callable[[], float] = lambda: 0.0) -> PrefixCache:
    """A new cache in the arena of ``parked``, and within its pin budget: half of it."""
    return make_cache(BUDGET_TOKENS, arena=parked.arena, drop_parked=parked.drop_next, other_pins=parked, clock=clock)


def plain(name: int, length: int) -> Prompt:
    return conversation(name, 0, length, pin=False)


def restorable(cache: PrefixCache, prompt: Prompt) -> int:
    return cache.match(prompt, prompt.tokens).restorable


def test_what_is_left_is_there_when_the_model_comes_back() -> None:
    parked = parked_caches()
    first, second = beside(parked), beside(parked)
    save(first, plain(1, 600))
    parked.park("a", b"same", first)
    save(second, plain(1, 700))  # the same ids say other things to another model
    parked.park("b", b"other", second)
    assert parked.take("a", b"same") is first
    assert restorable(first, plain(1, 600)) == 600
    assert parked.take("a", b"same") is None, "it is in use"


def test_all_of_them_together_stay_within_the_budget_and_the_one_in_use_has_its_way() -> None:
    parked = parked_caches()
    for name in ("a", "b"):
        cache = beside(parked)
        save(cache, plain(1, 800))
        parked.park(name, b"", cache)
    used = beside(parked)
    save(used, plain(1, 400))
    assert restorable(used, plain(1, 400)) == 400
    save(used, plain(2, 1500))
    assert restorable(used, plain(2, 1500)) == 1500
    assert parked.arena.used_bytes <= parked.arena.budget_bytes
    assert restorable(used, plain(1, 400)) == 400, "what is parked goes before anything of the cache in use"


def test_the_cache_that_was_left_longest_ago_goes_first() -> None:
    parked = parked_caches()
    for name in ("a", "b"):
        cache = beside(parked)
        save(cache, plain(1, 800))
        parked.park(name, b"", cache)
    save(beside(parked), plain(1, 800))
    first, second = parked.take("a", b""), parked.take("b", b"")
    assert first is not None
    assert second is not None
    assert restorable(first, plain(1, 800)) < 800
    assert restorable(second, plain(1, 800)) == 800


def test_pins_of_a_parked_cache_stay() -> None:
    parked = parked_caches()
    pinned = beside(parked)
    save(pinned, conversation(1, 500, 900))
    parked.park("a", b"", pinned)
    assert parked.pinned_bytes == 500 * BYTES_PER_TOKEN
    used = beside(parked)
    for name in range(2, 12):
        save(used, plain(name, 700))
    assert restorable(pinned, conversation(1, 500, 900)) == 500


def test_pins_of_a_parked_cache_end_when_their_time_is_over() -> None:
    seconds = [0.0]
    parked = parked_caches()
    pinned = beside(parked, clock=lambda: seconds[-1])
    prompt = replace(conversation(1, 500, 900, pin=False), pin_wishes=(PinWish(position=900, ttl_seconds=300),))
    save(pinned, prompt)
    parked.park("a", b"", pinned)
    assert not parked.drop_next()
    seconds.append(301)
    while parked.drop_next():
        pass
    assert parked.arena.used_bytes == parked.pinned_bytes == 0
    assert parked.ended == {PinEnd.EXPIRED: 1}


def wishing(length: int) -> Prompt:
    return replace(conversation(1, 0, length, pin=False), pin_wishes=(PinWish(position=length, ttl_seconds=300),))


def pin_by_hand(cache: PrefixCache, length: int) -> None:
    save(cache, plain(1, length))
    assert cache.pinning.pin_anchor(AnchorOrder(prompt=plain(1, length), position=length, name=None, ttl_seconds=None))


def test_heads_of_parked_caches_give_way_to_those_of_the_one_in_use_the_oldest_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    seconds = [0.0]
    parked = parked_caches()
    early, late = (beside(parked, clock=lambda: seconds[-1]) for _ in range(2))
    for cache in (early, late):
        save(cache, conversation(1, 400, 500))
        seconds.append(seconds[-1] + 1)
    parked.park("late", b"", late)
    parked.park("early", b"", early)
    used = beside(parked)
    save(used, conversation(1, 500, 600))
    assert [len(cache.pins) for cache in (early, late, used)] == [0, 1, 1]
    assert parked.pinned_bytes == 400 * BYTES_PER_TOKEN
    assert [line for line in caplog.messages if "early, which is not loaded" in line]
    assert parked.ended == {PinEnd.GAVE_WAY: 1}
    while parked.drop_next():
        pass
    assert (restorable(early, conversation(1, 400, 500)), restorable(late, conversation(1, 400, 500))) == (0, 400)


def test_no_more_of_them_go_than_have_to() -> None:
    parked = parked_caches()
    cache, used = beside(parked), beside(parked)
    save(cache, conversation(1, 400, 500))
    parked.park("a", b"", cache)
    save(used, conversation(1, 600, 700))
    assert [len(cache.pins) for cache in (cache, used)] == [1, 1]


def test_explicit_pins_of_parked_caches_give_way_to_nothing() -> None:
    parked = parked_caches()
    cache, used = beside(parked), beside(parked)
    pin_by_hand(cache, 960)
    parked.park("a", b"", cache)
    save(used, conversation(1, 500, 600))
    assert used.pins.refused == {PinRefusal.OVER_BUDGET: 1}
    save(used, wishing(500))
    assert used.pins.refused == {PinRefusal.OVER_BUDGET: 2}
    with pytest.raises(Conflict, match=f"{960 * BYTES_PER_TOKEN} of them for models that are not loaded") as error:
        pin_by_hand(used, 500)
    assert error.value.details["pinned_bytes"] == 960 * BYTES_PER_TOKEN
    with pytest.raises(Conflict):
        used.pinning.pin_anchor(AnchorOrder(prompt=plain(2, 500), position=500, name=None, ttl_seconds=None))
    assert (len(cache.pins), len(used.pins)) == (1, 0)


def test_beside_explicit_pins_of_parked_caches_the_beginning_of_a_head_is_pinned() -> None:
    parked = parked_caches()
    cache, used = beside(parked), beside(parked)
    pin_by_hand(cache, 700)
    parked.park("a", b"", cache)
    save(used, conversation(1, 500, 600))
    assert 0 < used.pins.pinned_bytes <= 300 * BYTES_PER_TOKEN


def test_what_calls_wished_for_gives_way_to_wishes_and_explicit_pins_alone() -> None:
    parked = parked_caches()
    cache, used = beside(parked), beside(parked)
    save(cache, wishing(960))
    parked.park("a", b"", cache)
    save(used, conversation(1, 500, 600))
    assert used.pins.refused == {PinRefusal.OVER_BUDGET: 1}
    assert len(cache.pins) == 1
    pin_by_hand(used, 500)
    assert (len(cache.pins), len(used.pins)) == (0, 1)


def test_when_memory_is_short_pins_of_parked_caches_go_before_those_of_the_one_in_use() -> None:
    parked = parked_caches()
    cache, used = beside(parked), beside(parked)
    save(cache, conversation(1, 400, 400))
    parked.park("a", b"", cache)
    save(used, conversation(1, 300, 300))
    used.give_back(400 * BYTES_PER_TOKEN)
    assert (len(cache.pins), len(used.pins)) == (0, 1)
    assert parked.arena.used_bytes == 300 * BYTES_PER_TOKEN


def test_what_means_something_else_now_is_freed() -> None:
    parked = parked_caches()
    cache = beside(parked)
    save(cache, conversation(1, 500, 900))
    parked.park("a", b"then", cache)
    assert parked.take("a", b"now") is None
    assert parked.arena.used_bytes == 0
    assert not parked.drop_next()


def test_a_discarded_cache_frees_what_was_captured_and_never_saved() -> None:
    parked = parked_caches()
    cache = make_cache(BUDGET_TOKENS, arena=parked.arena, drop_parked=parked.drop_next, kind=MemoryKind.HYBRID)
    prompt = plain(1, 600)
    state = cache.capture(
        prompt, prompt.tokens, lambda allocate: allocate(100), call_class=CallClass.COLD, ends_reply=False
    )
    assert state is not None
    cache.discard()
    assert parked.arena.used_bytes == 0


Step = tuple[Literal["a", "b", "c"], int, int]


@given(
    steps=st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3), st.integers(1, 2400)), max_size=12)
)
def test_whatever_is_loaded_in_whatever_order(steps: list[Step]) -> None:
    """The bytes of all caches are those of the arena, and no model ever sees what another one kept."""
    parked = parked_caches()
    caches: dict[str, PrefixCache] = {}
    salt = {name: index * 1000 for index, name in enumerate("abc")}
    loaded: str | None = None
    for name, conversation_number, length in steps:
        if name != loaded:
            if loaded is not None:
                parked.park(loaded, loaded.encode(), caches[loaded])
            taken = parked.take(name, name.encode())
            assert taken is caches.get(name)
            caches[name] = taken or beside(parked)
            loaded = name
        save(caches[name], plain(salt[name] + conversation_number, length))
        exports = {node.rows for cache in caches.values() for node in cache.tree.kept if node.rows is not None}
        kept = sum(rows.nbytes for rows in exports)
        assert kept <= parked.arena.used_bytes <= parked.arena.budget_bytes
        for other, cache in caches.items():
            for stranger in set(salt) - {other}:
                assert restorable(cache, plain(salt[stranger] + conversation_number, length)) == 0
