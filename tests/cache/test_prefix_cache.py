"""The cache as a whole: what floods cannot push out, and what a budget that is too small says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from anchorline.cache.cuts import PIECE_TOKENS_MIN
from anchorline.cache.host import HostArena
from anchorline.cache.pins import NO_PINS, OtherPins, PinEnd, PinRefusal
from anchorline.cache.policy import KeepValue, cost_aware
from anchorline.cache.prefix_cache import PIECE_SHARE, PrefixCache
from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.cache.segment import Absence
from anchorline.cache.storage import Allocate, GiveUp, nothing_parked
from anchorline.llama.interface import MemoryKind
from tests.support.fake_runtime import capabilities_of, tokens_of

BYTES_PER_TOKEN = 64


def export(start: int, end: int, allocate: Allocate) -> memoryview | None:
    return allocate((end - start) * BYTES_PER_TOKEN)


def make_cache(
    budget_tokens: int,
    *,
    pin_tokens: int | None = None,
    max_pins: int = 100,
    kind: MemoryKind = MemoryKind.PLAIN,
    exact: bool = False,
    clock: Callable[[], float] = lambda: 0.0,
    keep_value: KeepValue = cost_aware,
    longest_piece: int | None = None,
    arena: HostArena | None = None,
    drop_parked: GiveUp = nothing_parked,
    other_pins: OtherPins = NO_PINS,
) -> PrefixCache:
    """A cache for so many tokens, of which pins may hold ``pin_tokens``, or half.

    ``longest_piece`` is in tokens, instead of a share of the budget.
    """
    budget_bytes = budget_tokens * BYTES_PER_TOKEN
    estimate = BYTES_PER_TOKEN if longest_piece is None else PIECE_SHARE * budget_bytes / longest_piece
    return PrefixCache(
        capabilities_of(kind),
        arena=HostArena(budget_bytes) if arena is None else arena,
        drop_parked=drop_parked,
        other_pins=other_pins,
        pin_budget_bytes=(budget_tokens // 2 if pin_tokens is None else pin_tokens) * BYTES_PER_TOKEN,
        max_pins=max_pins,
        exact=exact,
        batch_tokens=512,
        bytes_per_token=estimate,
        clock=clock,
        keep_value=keep_value,
    )


def conversation(name: int, head: int, length: int, *, pin: bool = True) -> Prompt:
    """A prompt of ``length`` tokens whose first ``head`` tokens are the same for every name."""
    ids = [*range(head), *(name * 100_000 + offset for offset in range(length - head))]
    return Prompt(
        tokens=tokens_of(ids), cuts=(Cut(head, CutKind.HEAD),) if head else (), tool_fingerprint="t", pin_head=pin
    )


def save(cache: PrefixCache, prompt: Prompt) -> None:
    call_class = cache.note_call(prompt)
    for _ in cache.save(prompt, prompt.tokens, export, call_class=call_class):
        pass


def test_pinned_head_survives_a_flood_of_side_calls() -> None:
    cache = make_cache(2500)
    save(cache, conversation(1, 400, 1000))
    for name in range(2, 62):
        side_call = conversation(name, 0, 300 + name, pin=False)
        save(cache, side_call)
        assert cache.arena.used_bytes <= cache.arena.budget_bytes
    assert cache.match(conversation(1, 400, 1000), conversation(1, 400, 1000).tokens).restorable >= 400
    assert cache.counters.evictions > 0


def test_without_the_pin_the_flood_takes_the_head() -> None:
    cache = make_cache(2500)
    save(cache, conversation(1, 400, 1000, pin=False))
    for name in range(2, 62):
        save(cache, conversation(name, 0, 300 + name, pin=False))
    assert cache.match(conversation(1, 400, 1000), conversation(1, 400, 1000).tokens).restorable < 400


def test_pins_past_half_the_budget_are_given_up_oldest_first() -> None:
    cache = make_cache(1000)
    for name in range(4):
        ids = [name * 1000 + offset for offset in range(200)]
        prompt = Prompt(
            tokens=tokens_of(ids), cuts=(Cut(190, CutKind.HEAD),), tool_fingerprint=str(name), pin_head=True
        )
        save(cache, prompt)
        assert cache.pins.pinned_bytes <= cache.arena.budget_bytes // 2
    assert len(cache.pins) == 2
    assert cache.pins.ended == {PinEnd.GAVE_WAY: 2}


def test_of_a_head_over_the_pin_limit_the_beginning_is_pinned() -> None:
    cache = make_cache(1000)
    for name in (1, 2):
        save(cache, conversation(name, 700, 800))
        assert [pin.tokens for pin in cache.pins.of("")] == [PIECE_TOKENS_MIN], "half of the budget holds one piece"
    assert not cache.pins.refused


def test_a_head_without_a_piece_within_the_pin_limit_is_refused_and_counted() -> None:
    cache = make_cache(1000, longest_piece=2000)
    save(cache, conversation(1, 700, 800))
    assert len(cache.pins) == 0
    assert cache.pins.refused == {PinRefusal.OVER_BUDGET: 1}


@pytest.mark.parametrize(
    ("shared", "head", "pinned"),
    [(2, 700, []), (87, 700, []), (88, 700, [88]), (255, 4000, []), (256, 4000, [256])],
    ids=["what all begin with", "short of an eighth", "an eighth", "short of 256", "256"],
)
def test_a_part_of_a_head_over_the_pin_limit_is_pinned_where_it_is_worth_it(
    shared: int, head: int, pinned: list[int]
) -> None:
    cache = make_cache(10_000, pin_tokens=500, longest_piece=10_000)
    for name in (1, 2):
        other = conversation(name, shared, head + 10)
        save(cache, replace(other, cuts=(Cut(head, CutKind.HEAD),)))
    assert [pin.tokens for pin in cache.pins.of("")] == pinned
    assert cache.pins.refused[PinRefusal.OVER_BUDGET] == 2 - len(pinned)


def test_what_does_not_fit_is_counted_and_leaves_the_rest_alone() -> None:
    cache = make_cache(1000, longest_piece=2000)
    save(cache, conversation(1, 0, 600))
    too_large = conversation(2, 0, 1001, pin=False)
    save(cache, too_large)
    assert cache.counters.unsaved == Counter(oversize=1)
    assert cache.match(too_large, too_large.tokens).restorable == 0
    assert cache.match(conversation(1, 0, 600), conversation(1, 0, 600).tokens).restorable == 600


def test_of_what_is_too_long_the_beginning_is_kept_and_the_rest_was_seen() -> None:
    cache = make_cache(8_000)
    too_long = conversation(1, 0, 9_000, pin=False)
    save(cache, too_long)
    match = cache.match(too_long, too_long.tokens)
    assert 7_000 < match.restorable <= 8_000
    assert (match.seen, match.absence) == (9_000, Absence.NO_ROOM)


def test_shared_heads_are_exported_once() -> None:
    cache = make_cache(10_000)
    for name in range(5):
        save(cache, conversation(name, 400, 500))
    assert cache.counters.exported_bytes == (400 + 5 * 100) * BYTES_PER_TOKEN
