"""The decision to wait for another's prefill: values in, a wait out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.plan import Speeds
from anchorline.engine.sharing import SAVED_SECONDS_MIN, Prefilling, Wait, choose_wait

SPEEDS = Speeds(prefill_seconds_per_token=1e-3)
WORTH_A_WAIT = int(SAVED_SECONDS_MIN / SPEEDS.prefill_seconds_per_token)


def plain(shared: int, decoded: int) -> Prefilling:
    return Prefilling(shared_tokens=shared, decoded_tokens=decoded, resume_points=None)


def stateful(shared: int, decoded: int, *points: int) -> Prefilling:
    return Prefilling(shared_tokens=shared, decoded_tokens=decoded, resume_points=points)


def test_a_shared_head_is_waited_for() -> None:
    assert choose_wait(7_100, 0, [plain(7_000, 0)], SPEEDS) == Wait(0, 7_000)


def test_the_same_prompt_is_waited_for_but_for_its_last_token() -> None:
    assert choose_wait(7_000, 0, [plain(7_000, 100)], SPEEDS) == Wait(0, 6_999)


def test_what_the_source_has_passed_needs_no_wait() -> None:
    assert choose_wait(7_100, 7_000, [plain(7_000, 7_050)], SPEEDS) is None


def test_a_few_tokens_are_no_reason() -> None:
    assert choose_wait(500, 0, [plain(WORTH_A_WAIT - 1, 0)], SPEEDS) is None
    assert choose_wait(500, 0, [plain(WORTH_A_WAIT, 0)], SPEEDS) == Wait(0, WORTH_A_WAIT)


def test_a_source_that_is_far_behind_is_not_waited_for() -> None:
    """It has 6,000 tokens to go where the other, at half the speed beside it, has 1,000."""
    assert choose_wait(7_100, 6_000, [plain(7_000, 1_000)], SPEEDS) is None
    assert choose_wait(7_100, 6_000, [plain(7_000, 5_500)], SPEEDS) == Wait(0, 7_000)


def test_a_crowd_in_the_batch_favours_waiting_less() -> None:
    """Beside three others a stream is slow, and so is the source that it would wait for."""
    others = [plain(0, 0)] * 3
    assert choose_wait(7_100, 4_000, [plain(7_000, 2_000)], SPEEDS) == Wait(0, 7_000)
    assert choose_wait(7_100, 4_000, [*others, plain(7_000, 2_000)], SPEEDS) is None


def test_stateful_sources_are_waited_for_up_to_a_resume_point() -> None:
    assert choose_wait(7_100, 0, [stateful(7_050, 0, 4_000, 7_000, 9_000)], SPEEDS) == Wait(0, 7_000)
    assert choose_wait(7_100, 0, [stateful(7_050, 0, 9_000)], SPEEDS) is None
    assert choose_wait(7_100, 7_000, [stateful(7_050, 4_000, 7_000)], SPEEDS) is None


def test_of_several_sources_the_one_that_saves_most_is_chosen() -> None:
    assert choose_wait(7_100, 0, [plain(3_000, 500), plain(7_000, 500)], SPEEDS) == Wait(1, 7_000)
    assert choose_wait(7_100, 0, [plain(7_000, 500), plain(7_000, 2_500)], SPEEDS) == Wait(1, 7_000)


sources = st.builds(
    Prefilling,
    shared_tokens=st.integers(0, 400),
    decoded_tokens=st.integers(0, 400),
    resume_points=st.none() | st.lists(st.integers(1, 400), max_size=4).map(lambda points: tuple(sorted(points))),
)


@given(st.integers(1, 400), st.integers(0, 399), st.lists(sources, max_size=4))
def test_a_wait_is_for_something_ahead_that_both_share_and_that_is_not_there_yet(
    prompt_tokens: int, restorable: int, prefilling: list[Prefilling]
) -> None:
    wait = choose_wait(prompt_tokens, restorable, prefilling, SPEEDS)
    if wait is None:
        return
    source = prefilling[wait.source]
    assert max(restorable, source.decoded_tokens) < wait.position
    assert wait.position <= min(source.shared_tokens, prompt_tokens - 1)
    assert source.resume_points is None or wait.position in source.resume_points
