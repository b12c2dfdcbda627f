"""What floods of side calls and one-shots leave of the conversations."""

from __future__ import annotations

import pytest

from anchorline.cache.classes import CallClass
from anchorline.cache.prompt import Cut, CutKind, Prompt
from tests.engine.harness import Harness
from tests.support.fake_runtime import CELL_BYTES, FakeRuntime, tokens_of

HEAD = 20
TURN = 40
TURNS = 4
CONVERSATION_TOKENS = HEAD + TURN * TURNS


def conversation(name: int, turns: int) -> Prompt:
    """A head that is the conversation's own, and ``turns`` messages behind it."""
    length = HEAD + TURN * turns
    ends = [HEAD + TURN * turn for turn in range(1, turns + 1)]
    cuts = [Cut(HEAD, CutKind.HEAD), *(Cut(end - 2, CutKind.MESSAGE, turn) for turn, end in enumerate(ends))]
    return Prompt(
        tokens=tokens_of([(name + 5 * index) % 48 for index in range(length)]), cuts=tuple(cuts), tool_fingerprint="t"
    )


def question(number: int, length: int, *, tools: bool) -> Prompt:
    """A call that nobody comes back to: a title, or with tools a one-shot of its own head."""
    ids = [1000 + number, *range(length - 1)]
    return Prompt(
        tokens=tokens_of(ids),
        cuts=(Cut(length - 2, CutKind.GENERATION, 0),),
        tool_fingerprint="t" if tools else None,
    )


def restorable(harness: Harness, prompt: Prompt) -> int:
    assert harness.cache is not None
    return harness.cache.match(prompt, prompt.tokens).restorable


def harness_of(*, eviction: str = "cost-aware") -> Harness:
    runtime = FakeRuntime(context_tokens=1000, sequences=1, batch_tokens=64)
    budget = int(2.5 * CONVERSATION_TOKENS * CELL_BYTES)
    return Harness(runtime, cache_bytes=budget, parallel=1, resident_idle=0, eviction=eviction)


def talk(harness: Harness) -> list[Prompt]:
    """Two conversations that take turns; their last prompts."""
    for turns in range(1, TURNS + 1):
        for name in (1, 2):
            harness.ask(conversation(name, turns), max_tokens=1)
    return [conversation(name, TURNS) for name in (1, 2)]


@pytest.mark.parametrize("calls", [60, 200])
def test_titles_and_one_shots_leave_every_segment_of_the_conversations(calls: int) -> None:
    harness = harness_of()
    last = talk(harness)
    for number in range(calls):
        call = question(number, 40, tools=number % 3 != 0)
        expected = CallClass.COLD if number % 3 else CallClass.SIDE
        assert harness.report(call, max_tokens=1).call_class is expected
    assert [restorable(harness, prompt) for prompt in last] == [CONVERSATION_TOKENS] * 2


def test_by_recency_they_do_not() -> None:
    """The same flood takes them when only recency counts."""
    harness = harness_of(eviction="lru")
    last = talk(harness)
    for number in range(60):
        harness.ask(question(number, 40, tools=number % 3 != 0), max_tokens=1)
    assert all(restorable(harness, prompt) < CONVERSATION_TOKENS for prompt in last)


def test_a_side_call_takes_nothing_that_is_not_left_over() -> None:
    harness = harness_of()
    talk(harness)
    for number in range(30):
        harness.ask(question(number, 40, tools=True), max_tokens=1)
    assert harness.cache is not None
    evictions = harness.cache.counters.evictions
    for number in range(30, 60):
        harness.ask(question(number, 40, tools=False), max_tokens=1)
    assert harness.cache.counters.evictions == evictions
    assert harness.cache.counters.unsaved["no_room"] > 0


def test_a_guess_takes_what_is_left_over_and_counts_once_it_is_right() -> None:
    harness = harness_of()
    last = talk(harness)
    for number in range(30):
        harness.ask(question(number, 40, tools=True), max_tokens=1)
    assert harness.cache is not None
    evictions = harness.cache.counters.evictions
    coming = conversation(1, TURNS + 1)
    harness.ask(coming.beginning(len(coming) - 10), max_tokens=0)
    assert harness.cache.counters.evictions == evictions
    assert harness.report(coming, max_tokens=1).call_class is CallClass.CONVERSATION
    assert restorable(harness, coming) == len(coming)
    assert restorable(harness, last[1]) == CONVERSATION_TOKENS


def test_without_eviction_what_does_not_fit_is_refused_and_counted() -> None:
    harness = harness_of(eviction="none")
    last = talk(harness)
    for number in range(60):
        harness.ask(question(number, 40, tools=True), max_tokens=1)
    assert harness.cache is not None
    assert harness.cache.counters.evictions == 0
    assert harness.cache.counters.unsaved["no_room"] > 0
    assert [restorable(harness, prompt) for prompt in last] == [CONVERSATION_TOKENS] * 2
