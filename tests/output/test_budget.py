"""Reasoning that has used up its tokens is closed, however the tags are split into tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchorline.engine.request import FinishReason
from anchorline.output.budget import ReasoningBudget
from anchorline.output.events import ChoiceFinished, ReasoningDelta, TextDelta
from anchorline.output.format import THINK_TAGS, CallMode, ReasoningTags, ReplyContext
from anchorline.output.formats import FORMATS
from tests.server.standin import CONTROL, ByteTokenizer


def budget(tokens: int, *, opened: bool = False, tags: ReasoningTags = THINK_TAGS, choices: int = 1) -> ReasoningBudget:
    return ReasoningBudget(
        tags,
        tokenizer=ByteTokenizer(),
        closing=list(tags.end.encode()),
        budget_tokens=tokens,
        opened=opened,
        choices=choices,
    )


def reply(forcer: ReasoningBudget, wanted: list[int], *, choice: int = 0, length: int = 200) -> list[int]:
    """What a model says that wants to say ``wanted``, one byte each; forced tokens come in between."""
    said: list[int] = []
    left = list(wanted)
    while left and len(said) < length:
        forced = forcer.force(choice, np.array(said, dtype=np.int32))
        said.append(left.pop(0) if forced is None else forced)
    return said


def text(forcer: ReasoningBudget, wanted: str) -> str:
    return bytes(reply(forcer, list(wanted.encode()))).decode()


def test_a_block_within_its_budget_is_left_alone() -> None:
    assert text(budget(20), "<think>abc</think>rest") == "<think>abc</think>rest"


def test_a_block_beyond_it_is_closed_and_the_reply_goes_on() -> None:
    assert text(budget(4), "<think>abcdefgh") == "<think>abcd</think>efgh"
    assert text(budget(2, opened=True), "abcd") == "ab</think>cd"
    assert text(budget(0, opened=True), "abcd") == "</think>abcd"


def test_a_second_block_gets_what_the_first_left() -> None:
    assert text(budget(10), "<think>a</think>\n<think>bcd") == "<think>a</think>\n<think>b</think>cd"


def test_a_tag_within_the_answer_is_text() -> None:
    for said in ("One writes <think>so, and so on", "<think>a</think>Now <think>so, and so on"):
        assert text(budget(12), said) == said


def test_without_a_block_nothing_is_forced() -> None:
    assert text(budget(0), "abc <think without end") == "abc <think without end"


def test_choices_are_counted_apart() -> None:
    forcer = budget(2, opened=True, choices=2)
    said = [bytes(reply(forcer, list(b"abcd"), choice=choice)) for choice in (1, 0)]
    assert said == [b"ab</think>cd"] * 2


def test_tags_may_be_control_tokens() -> None:
    tags = ReasoningTags(begin="<|im_start|>", end="<|im_end|>")
    forcer = ReasoningBudget(
        tags, tokenizer=ByteTokenizer(), closing=[CONTROL["<|im_end|>"]], budget_tokens=1, opened=False, choices=1
    )
    start, end = CONTROL["<|im_start|>"], CONTROL["<|im_end|>"]
    assert reply(forcer, [start, 97, 98]) == [start, 97, end, 98]


def test_a_tag_that_the_vocabulary_cannot_spell_is_forced_once() -> None:
    forcer = ReasoningBudget(
        THINK_TAGS, tokenizer=ByteTokenizer(), closing=list(b"??"), budget_tokens=1, opened=True, choices=1
    )
    assert text(forcer, "abcd") == "a??bcd"


def test_control_tokens_open_a_block_anywhere() -> None:
    tags = ReasoningTags(begin="<|im_start|>", end="</think>")
    start = CONTROL["<|im_start|>"]
    assert reply(budget(1, tags=tags), [120, start, 97, 98]) == [120, start, 97, *b"</think>", 98]


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "a", "<", "/think>", "think>", "\n"]), max_size=12).map("".join),
    st.integers(0, 12),
    st.booleans(),
)
def test_the_parser_finds_no_more_reasoning_than_the_budget_allows(wanted: str, tokens: int, opened: bool) -> None:
    context = ReplyContext(
        prompt_end="<think>" if opened else "", tools={}, calls=CallMode.NONE, new_call_id=lambda: "id"
    )
    parser = FORMATS["hermes"].parser(context)
    said = text(budget(tokens, opened=opened), wanted)
    events = [*parser.feed(TextDelta(0, said, ())), *parser.feed(ChoiceFinished(0, FinishReason.STOP, None))]
    assert sum(len(event.text) for event in events if isinstance(event, ReasoningDelta)) <= tokens
