"""Caches of several models in one arena: what is parked, what goes for the one in use, and what comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.classes import CallClass
from anchorline.cache.host import HostArena
from anchorline.cache.parked import ParkedCaches
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.prompt import PinWish, Prompt
from anchorline.llama.interface import MemoryKind
from tests.cache.test_prefix_cache import BYTES_PER_TOKEN, conversation, make_cache, save

BUDGET_TOKENS = 2000


def parked_caches(tokens: int = BUDGET_TOKENS) -> ParkedCaches:
    return ParkedCaches(HostArena(tokens * BYTES_PER_TOKEN))


def beside(parked: ParkedCaches) -> PrefixCache:
    """A new cache in the arena of ``parked``."""
    return make_cache(BUDGET_TOKENS, arena=parked.arena, drop_parked=parked.drop_next)


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
    pinned = make_cache(BUDGET_TOKENS, arena=parked.arena, drop_parked=parked.drop_next, clock=lambda: seconds[-1])
    prompt = replace(conversation(1, 500, 900, pin=False), pin_wishes=(PinWish(position=900, ttl_seconds=300),))
    save(pinned, prompt)
    parked.park("a", b"", pinned)
    assert not parked.drop_next()
    seconds.append(301)
    while parked.drop_next():
        pass
    assert parked.arena.used_bytes == parked.pinned_bytes == 0


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
