"""How much of a step goes to prompts: by who waits for its end, and by what the machine computes in that time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anchorline.engine.schedule import PREFILL_TOKENS_MIN, prefill_tokens, share_batch
from tests.support.fake_runtime import FakeRuntime

LIMITS = replace(FakeRuntime().limits, batch_tokens=2048, ubatch_tokens=512)
SLOW, MIDDLING, FAST = 1.0, 1e-3, 1e-6
"""Seconds that a prompt token takes."""


@pytest.mark.parametrize(
    ("token_seconds", "alone", "beside_a_reply", "in_the_background"),
    [(SLOW, 512, PREFILL_TOKENS_MIN, PREFILL_TOKENS_MIN), (MIDDLING, 512, 200, 50), (FAST, 2048, 512, 512)],
)
def test_a_step_takes_as_long_as_others_can_wait(
    token_seconds: float, alone: int, beside_a_reply: int, in_the_background: int
) -> None:
    def room(*, generating: bool, background: bool) -> int:
        return prefill_tokens(LIMITS, generating=generating, background=background, token_seconds=token_seconds)

    assert room(generating=False, background=False) == alone
    assert room(generating=True, background=False) == beside_a_reply
    assert room(generating=False, background=True) == in_the_background


@pytest.mark.parametrize(
    ("pending", "shares"),
    [
        ([1, 1, 1], [1, 1, 1]),
        ([1, 5000], [1, 200]),
        ([5000, 40, 1], [160, 40, 1]),
        ([5000, 5000], [100, 100]),
    ],
)
def test_replies_go_first_and_prompts_share_the_rest(pending: list[int], shares: list[int]) -> None:
    assert share_batch(pending, batch_tokens=2048, prefill_tokens=200) == shares


def test_the_batch_is_never_overfilled() -> None:
    assert share_batch([1] * 30 + [500], batch_tokens=32, prefill_tokens=200) == [1] * 30 + [2]
