"""What a call is taken for, without any help of its client's."""

from __future__ import annotations

import pytest

from anchorline.cache.classes import (
    SIDE_MESSAGES_MAX,
    SIDE_PROMPT_TOKENS_MAX,
    SIDE_REPLY_TOKENS_MAX,
    CallClass,
    at_end,
    classify,
)
from anchorline.cache.prompt import Cut, CutKind, Prompt
from tests.support.fake_runtime import tokens_of

HEAD = 100


def prompt_of(*turn_ends: int, tools: bool = False, name: str | None = None) -> Prompt:
    """A head of 100 tokens, a message up to each of ``turn_ends``, and three tokens that begin the reply."""
    kinds = [CutKind.MESSAGE] * (len(turn_ends) - 1) + [CutKind.GENERATION] * bool(turn_ends)
    cuts = (Cut(HEAD, CutKind.HEAD), *(Cut(end, kind) for end, kind in zip(turn_ends, kinds, strict=True)))
    return Prompt(
        tokens=tokens_of([0] * ((turn_ends or (HEAD,))[-1] + 3)),
        cuts=cuts,
        tool_fingerprint="t" if tools else None,
        conversation=name,
    )


def test_a_short_question_without_tools_is_a_side_call_even_when_it_comes_again() -> None:
    title = prompt_of(140)
    assert classify(title, 0) is CallClass.SIDE
    assert classify(title, HEAD) is CallClass.SIDE
    assert classify(title, len(title)) is CallClass.SIDE


@pytest.mark.parametrize(
    "prompt",
    [
        prompt_of(140, tools=True),
        prompt_of(SIDE_PROMPT_TOKENS_MAX),
        prompt_of(*range(110, 110 + 10 * (SIDE_MESSAGES_MAX + 1), 10)),
        prompt_of(140, name="mine"),
    ],
    ids=["tools", "long", "several turns", "named"],
)
def test_anything_else_is_cold_until_its_history_was_seen(prompt: Prompt) -> None:
    assert classify(prompt, 0) is CallClass.COLD
    assert classify(prompt, HEAD) is CallClass.COLD
    first_turn = next(cut.position for cut in prompt.cuts if cut.kind is not CutKind.HEAD)
    assert classify(prompt, first_turn - 1) is CallClass.COLD
    assert classify(prompt, first_turn) is CallClass.CONVERSATION


def test_text_without_messages_is_a_conversation_once_half_of_it_was_seen() -> None:
    text = Prompt(tokens=tokens_of([0] * 100))
    assert classify(text, 49) is CallClass.COLD
    assert classify(text, 50) is CallClass.CONVERSATION


def test_a_side_call_ends_at_once() -> None:
    assert at_end(CallClass.SIDE, SIDE_REPLY_TOKENS_MAX) is CallClass.SIDE
    assert at_end(CallClass.SIDE, SIDE_REPLY_TOKENS_MAX + 1) is CallClass.COLD
    assert at_end(CallClass.CONVERSATION, 100_000) is CallClass.CONVERSATION
