"""Reasoning that has used up its tokens is closed, however the tags are split into tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchorline.output.budget import ReasoningBudget
from anchorline.output.format import THINK_TAGS, ReasoningTags
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
    assert text(budget(10), "<think>a</think>x<think>bcd") == "<think>a</think>x<think>b</think>cd"


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


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "a", "<", "/think>", "think>"]), max_size=12).map("".join),
    st.integers(0, 12),
    st.booleans(),
)
def test_no_more_is_thought_than_the_budget_allows(wanted: str, tokens: int, opened: bool) -> None:
    said = text(budget(tokens, opened=opened), wanted)
    rest, inside, thought = ("<think>" if opened else "") + said, False, 0
    while rest:
        tag = "</think>" if inside else "<think>"
        before, found, rest = rest.partition(tag)
        thought += len(before) if inside else 0
        inside ^= bool(found)
    assert thought <= tokens
