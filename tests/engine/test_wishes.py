"""What calls wish to be pinned: granted at their positions, whatever the kind of memory, and refused with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anchorline.cache.pins import Pin, PinEnd, PinKind, PinRefusal
from anchorline.cache.prompt import DEFAULT_TENANT, Cut, CutKind, PinWish, Prompt
from anchorline.llama.interface import MemoryKind
from tests.engine.harness import Harness
from tests.support.fake_runtime import FakeRuntime, tokens_of

kinds = pytest.mark.parametrize("kind", list(MemoryKind))
exact = pytest.mark.parametrize("exact", [False, True])

TALK = [position * 7 % 40 for position in range(200)]
CUTS = (
    Cut(40, CutKind.HEAD),
    *(Cut(end, CutKind.MESSAGE, index) for index, end in enumerate((70, 100, 130, 160, 190))),
)


def prompt(tokens: int = 200, *wishes: int, ttl: float = 300, conversation: str | None = None) -> Prompt:
    """The first so many tokens of TALK, with wishes at these positions."""
    return Prompt(
        tokens=tokens_of(TALK[:tokens]),
        cuts=tuple(cut for cut in CUTS if cut.position < tokens),
        message_starts=(40,),
        turn_start=160 if tokens > 160 else None,
        conversation=conversation,
        pin_wishes=tuple(PinWish(position=position, ttl_seconds=ttl) for position in wishes),
    )


def served(kind: MemoryKind, *, exact: bool = False, cache_bytes: int = 1 << 20) -> Harness:
    runtime = FakeRuntime(context_tokens=500, sequences=3, kind=kind)
    return Harness(runtime, exact=exact, resident_idle=0, cache_bytes=cache_bytes, checkpoint_every=1000)


def pins(harness: Harness) -> list[Pin]:
    assert harness.cache is not None
    return harness.cache.pins.of(DEFAULT_TENANT)


def flood(harness: Harness) -> None:
    """More than the whole budget of other prompts, all of them taken once."""
    assert harness.cache is not None
    before = harness.cache.counters.evicted_bytes
    for number in range(500):
        ids = [41, number // 40, *[number % 40] * 150]
        harness.ask(Prompt(tokens=tokens_of(ids), cuts=(Cut(100, CutKind.MESSAGE, 0),)))
        if harness.cache.counters.evicted_bytes - before > harness.cache.arena.budget_bytes:
            return
    raise AssertionError("the budget was never used up")


@kinds
@exact
def test_a_wish_is_granted_where_it_is_and_survives_a_flood(kind: MemoryKind, exact: bool) -> None:
    harness = served(kind, exact=exact, cache_bytes=8000)
    harness.ask(prompt(200, 70, 100))
    assert [(pin.kind, pin.tokens) for pin in pins(harness)] == [
        (PinKind.BREAKPOINT, 70),
        (PinKind.BREAKPOINT, 100),
    ]
    flood(harness)
    changed = replace(prompt(130), tokens=tokens_of([*TALK[:100], *[1] * 30]))
    assert harness.report(changed).restored_tokens == 100


@pytest.mark.parametrize("kind", [MemoryKind.HYBRID, MemoryKind.RECURRENT])
def test_a_stateful_prefill_pauses_at_wishes_that_lie_at_no_cut(kind: MemoryKind) -> None:
    harness = served(kind)
    harness.ask(prompt(200, 85))
    assert [pin.tokens for pin in pins(harness)] == [85]
    assert harness.report(replace(prompt(130), tokens=tokens_of([*TALK[:85], *[1] * 45]))).restored_tokens == 85


def test_a_chunk_that_ends_at_or_before_the_wish_is_what_exact_mode_keeps() -> None:
    harness = served(MemoryKind.PLAIN, exact=True)
    harness.ask(prompt(200, 85))
    assert [pin.tokens for pin in pins(harness)] == [70]


@kinds
def test_states_of_earlier_turns_stay_while_they_are_wished_for(kind: MemoryKind) -> None:
    harness = served(kind)
    harness.ask(prompt(85, 70))
    for tokens in (110, 140, 170, 200):
        harness.ask(prompt(tokens, 70))
    changed = replace(prompt(130), tokens=tokens_of([*TALK[:70], *[1] * 60]))
    assert harness.report(changed).restored_tokens == 70


@kinds
def test_a_wish_ends_its_ttl_after_the_last_call_that_contains_it(kind: MemoryKind) -> None:
    harness = served(kind)
    harness.ask(prompt(200, 70, ttl=300))
    harness.clock.seconds += 299
    harness.ask(prompt(85))
    harness.clock.seconds += 299
    harness.ask(Prompt(tokens=tokens_of([9] * 20)))
    assert [pin.tokens for pin in pins(harness)] == [70]
    harness.clock.seconds += 300
    harness.ask(Prompt(tokens=tokens_of([9] * 20)))
    assert pins(harness) == []


@kinds
def test_the_pin_of_a_conversation_moves_on_with_it(kind: MemoryKind) -> None:
    harness = served(kind)
    for tokens, position in ((85, 70), (110, 100), (140, 130)):
        harness.ask(prompt(tokens, position, conversation="talk"))
        assert [(pin.kind, pin.name, pin.tokens) for pin in pins(harness)] == [(PinKind.CONVERSATION, "talk", position)]
    harness.ask(prompt(110, 100, conversation="other"))
    assert [(pin.name, pin.tokens) for pin in pins(harness)] == [("talk", 130), ("other", 100)]


@kinds
def test_a_wish_beyond_the_budget_is_refused_and_its_call_goes_on(kind: MemoryKind) -> None:
    harness = served(kind, cache_bytes=4000)
    assert harness.cache is not None
    harness.cache.pins.limit_bytes = 10
    assert harness.ask(prompt(200, 100)).error is None
    assert pins(harness) == []
    assert harness.cache.pins.refused == {PinRefusal.OVER_BUDGET: 1}


def test_a_wish_for_what_cannot_be_kept_is_refused() -> None:
    harness = served(MemoryKind.PLAIN, cache_bytes=600)
    harness.ask(prompt(200, 100))
    assert harness.cache is not None
    assert harness.cache.pins.refused == {PinRefusal.NOT_KEPT: 1}


def test_a_pin_whose_restore_is_refused_is_lost_and_counted() -> None:
    harness = served(MemoryKind.PLAIN)
    harness.ask(prompt(200, 100))
    harness.runtime.faults.import_ = 1.0
    harness.ask(prompt(130))
    assert harness.cache is not None
    assert pins(harness) == []
    assert harness.cache.pins.ended == {PinEnd.LOST: 1}
