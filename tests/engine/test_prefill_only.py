"""A call without a reply: its prompt is prefilled and kept to its last token."""

from __future__ import annotations

import pytest

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.engine.request import FinishReason
from anchorline.llama.interface import MemoryKind
from tests.engine.harness import Harness
from tests.support.fake_runtime import FakeRuntime, expected_reply, tokens_of

kinds = pytest.mark.parametrize("kind", list(MemoryKind))
IDS = [position * 7 % 40 for position in range(300)]


def anchor(tokens: int) -> Prompt:
    """The first so many tokens of IDS: a head of 100 and a message that ends where they do."""
    cuts = (Cut(100, CutKind.HEAD), Cut(tokens, CutKind.MESSAGE, 0))
    return Prompt(tokens=tokens_of(IDS[:tokens]), cuts=cuts, message_starts=(100,))


def harness(kind: MemoryKind, *, exact: bool = False) -> Harness:
    return Harness(FakeRuntime(context_tokens=500, sequences=3, kind=kind), exact=exact, resident_idle=0)


@kinds
@pytest.mark.parametrize("exact", [False, True])
def test_the_whole_prompt_is_there_for_the_next_one(kind: MemoryKind, exact: bool) -> None:
    served = harness(kind, exact=exact)
    ahead = served.ask(anchor(250), max_tokens=0)
    assert ahead.tokens == {}
    assert ahead.finishes == {0: FinishReason.LENGTH}
    assert ahead.report is not None
    assert (ahead.report.prefilled_tokens, ahead.report.generated_tokens) == (250, 0)
    cuts = (*anchor(250).cuts, Cut(290, CutKind.MESSAGE, 1))
    later = served.ask(Prompt(tokens=tokens_of(IDS), cuts=cuts, message_starts=(100, 250)))
    assert later.tokens[0] == expected_reply(IDS, 4, kind=kind)
    assert later.report is not None
    assert later.report.restored_tokens == 250


@kinds
def test_nothing_is_sampled_and_it_runs_beside_others(kind: MemoryKind) -> None:
    served = harness(kind)
    _, ahead = served.open(anchor(250), max_tokens=0)
    _, beside = served.open(Prompt(tokens=tokens_of([9] * 60)), max_tokens=6)
    served.run()
    assert ahead.has_ended
    assert beside.tokens[0] == expected_reply([9] * 60, 6, kind=kind)


@kinds
def test_sent_again_it_costs_its_last_token_or_goes_on_from_a_cut(kind: MemoryKind) -> None:
    served = harness(kind)
    served.ask(anchor(250), max_tokens=0)
    again = served.report(anchor(250), max_tokens=0)
    assert again.restored_tokens == (249 if kind is MemoryKind.PLAIN else 100)
