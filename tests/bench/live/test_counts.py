"""What servers report of a call, and whether restored + prefilled is the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from anchorline.bench.client import CallFailed
from anchorline.bench.live.counts import anthropic_counts, openai_counts

CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 60}}


@pytest.mark.parametrize(
    ("timings", "adds_up"),
    [
        ({"cache_n": 60, "prompt_n": 40}, True),
        ({"cache_n": 60, "prompt_n": 41}, False),
        ({"cache_n": 59, "prompt_n": 40}, False),
        ({"prompt_n": 40}, True),
        ({}, None),
    ],
)
def test_timings_check_the_usage(timings: dict[str, Any], adds_up: bool | None) -> None:
    counts = openai_counts(CHAT_USAGE, timings)
    assert counts is not None
    assert (counts.prompt_tokens, counts.cached_tokens, counts.reply_tokens) == (100, 60, 8)
    assert counts.adds_up is adds_up


def test_without_timings_the_rest_of_the_prompt_was_prefilled() -> None:
    counts = openai_counts(CHAT_USAGE, {})
    assert counts is not None
    assert counts.prefilled_tokens == 40


@pytest.mark.parametrize(
    ("cached", "timings"),
    [(11, {}), (None, {"cache_n": 11}), (None, {"prompt_n": 11}), (4, {"cache_n": 5})],
    ids=["restored", "restored, by its timings", "prefilled", "two counts"],
)
def test_what_cannot_be_is_wrong_however_little_is_told(cached: int | None, timings: dict[str, Any]) -> None:
    counts = openai_counts({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": cached}}, timings)
    assert counts is not None
    assert counts.adds_up is False


@pytest.mark.parametrize("count", [-1, 4.5, True, "4", 10**30, [4]], ids=repr)
def test_what_is_no_count_fails_the_call(count: Any) -> None:
    told: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"prompt_tokens": count}, {}),
        ({"input_tokens": count}, {}),
        ({**CHAT_USAGE, "prompt_tokens_details": {"cached_tokens": count}}, {}),
        ({**CHAT_USAGE, "completion_tokens": count}, {}),
        (CHAT_USAGE, {"cache_n": count}),
        (CHAT_USAGE, {"prompt_n": count}),
    ]
    for usage, timings in told:
        with pytest.raises(CallFailed, match="that the server reports cannot be read"):
            openai_counts(usage, timings)
    for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"):
        with pytest.raises(CallFailed, match=name):
            anthropic_counts({"input_tokens": 4, name: count})


def test_responses_name_their_counts_otherwise() -> None:
    usage = {"input_tokens": 100, "output_tokens": 8, "input_tokens_details": {"cached_tokens": 60}}
    assert openai_counts(usage, {}) == openai_counts(CHAT_USAGE, {})


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}])
def test_a_server_that_does_not_say_what_it_restored(details: dict[str, Any] | None) -> None:
    counts = openai_counts({"prompt_tokens": 100, "prompt_tokens_details": details}, {})
    assert counts is not None
    assert (counts.cached_tokens, counts.prefilled_tokens, counts.adds_up) == (None, None, None)


def test_without_usage_there_are_no_counts() -> None:
    assert openai_counts({}, {"prompt_n": 4}) is None
    assert anthropic_counts({}) is None


def test_the_prompt_of_a_message_is_the_sum_of_three_counts() -> None:
    counts = anthropic_counts(
        {"input_tokens": 5, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 35, "output_tokens": 8}
    )
    assert counts is not None
    assert (counts.prompt_tokens, counts.cached_tokens, counts.prefilled_tokens) == (100, 60, 40)
    assert counts.adds_up is None
