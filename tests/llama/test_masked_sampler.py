"""Sampling under a mask: only what is allowed, from logits that stay as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.errors import ConstraintFailure
from anchorline.llama.interface import SamplingParams, TokenArray, TokenMask
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from tests.support.runtimes import Logits, feed, logits, make_runtime, random_tokens

PROMPT = random_tokens(60)
NOTHING = random_tokens(0)
LAST = len(PROMPT) - 1
VOCAB_SIZE = 512
GREEDY = SamplingParams(temperature=0)
FREE = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=3)
EVERY_SAMPLER = {
    "greedy": GREEDY,
    "default": SamplingParams(seed=1),
    "free": FREE,
    "narrow": SamplingParams(seed=1, top_k=3, top_p=0.5, min_p=0.3, typical_p=0.5, top_n_sigma=1.0),
    "xtc": replace(FREE, xtc_probability=1.0, xtc_threshold=0.01),
    "mirostat": replace(FREE, mirostat=1),
    "mirostat 2": replace(FREE, mirostat=2),
    "typical": replace(FREE, typical_p=0.5),
    "penalties": replace(FREE, repeat_penalty=1.5, presence_penalty=1.0, dry_multiplier=2.0),
    "bias": replace(FREE, logit_bias=((20, -math.inf), (40, 3.0))),
    "all forbidden": replace(FREE, logit_bias=tuple((token, -math.inf) for token in range(VOCAB_SIZE))),
    "greedy, all forbidden": replace(GREEDY, logit_bias=tuple((token, -math.inf) for token in range(VOCAB_SIZE))),
}


class ListedMask:
    """The same tokens at every step; notes what it is told."""

    def __init__(self, allowed: Sequence[int]) -> None:
        self._allowed = np.array(sorted(allowed), np.int32)
        self.accepted: list[int] = []

    def allowed(self) -> TokenArray:
        return self._allowed

    def accept(self, token: int) -> None:
        self.accepted.append(token)


class StrictMask(ListedMask):
    def accept(self, token: int) -> None:
        if token not in self._allowed:
            raise ConstraintFailure("not allowed")


@pytest.fixture
def decoded(runtime: LlamaRuntime) -> Logits:
    return feed(runtime, PROMPT, start=0)


def draw(runtime: LlamaRuntime, params: SamplingParams, mask: TokenMask | None, count: int = 20) -> list[int]:
    sampler = runtime.sampler(params, NOTHING, mask)
    drawn = [sampler.sample(LAST) for _ in range(count)]
    sampler.close()
    return drawn


@pytest.mark.parametrize("params", EVERY_SAMPLER.values(), ids=EVERY_SAMPLER.keys())
@pytest.mark.parametrize("allowed", [[17], [20, 40], range(100, 130)], ids=["one", "two", "thirty"])
def test_only_what_is_allowed_is_drawn(
    runtime: LlamaRuntime, decoded: Logits, params: SamplingParams, allowed: Sequence[int]
) -> None:
    mask = ListedMask(allowed)
    drawn = draw(runtime, params, mask)
    assert set(drawn) <= set(allowed)
    assert mask.accepted == drawn
    assert np.array_equal(logits(runtime, LAST), decoded)


@pytest.mark.parametrize("name", [name for name in EVERY_SAMPLER if "all forbidden" not in name])
def test_many_allowed_tokens_are_chosen_from_as_few_are(runtime: LlamaRuntime, decoded: Logits, name: str) -> None:
    """Without the likeliest tokens, which every chain would draw otherwise."""
    allowed = np.sort(np.argsort(-decoded)[40:]).astype(np.int32).tolist()
    mask = ListedMask(allowed)
    drawn = draw(runtime, EVERY_SAMPLER[name], mask, 60)
    assert set(drawn) <= set(allowed)
    assert mask.accepted == drawn
    assert np.array_equal(logits(runtime, LAST), decoded)


def test_typical_sampling_goes_by_the_allowed_tokens_alone(runtime: LlamaRuntime, decoded: Logits) -> None:
    """0 times the logarithm of 0, which llama.cpp would sum up for tokens with logits of -inf, is no number."""
    allowed = np.argsort(-decoded)[40:]
    logs = decoded[allowed].astype(np.float64)
    logs -= np.logaddexp.reduce(logs)
    chances = np.exp(logs)
    order = np.argsort(np.abs(-logs + (chances * logs).sum()))
    typical = allowed[order[: int((chances[order].cumsum() < 0.3).sum()) + 1]]
    params = replace(FREE, typical_p=0.3)
    assert set(draw(runtime, params, ListedMask(allowed.tolist()), 60)) <= set(typical.tolist())


def test_a_choice_that_is_not_allowed_is_an_error_and_not_taken(runtime: LlamaRuntime, decoded: Logits) -> None:
    """All that is allowed is forbidden by the client, so that nothing is left to choose from."""
    mask = StrictMask(range(200, VOCAB_SIZE))
    forbidding = replace(GREEDY, logit_bias=tuple((token, -math.inf) for token in range(200, VOCAB_SIZE)))
    with pytest.raises(ConstraintFailure):
        draw(runtime, forbidding, mask, 1)
    assert np.array_equal(logits(runtime, LAST), decoded)


@pytest.mark.parametrize("params", EVERY_SAMPLER.values(), ids=EVERY_SAMPLER.keys())
def test_a_mask_that_allows_everything_changes_nothing(
    runtime: LlamaRuntime, decoded: Logits, params: SamplingParams
) -> None:
    assert draw(runtime, params, ListedMask(range(VOCAB_SIZE))) == draw(runtime, params, None)


@settings(max_examples=30, deadline=None)
@given(allowed=st.sets(st.integers(0, VOCAB_SIZE - 1), min_size=1))
def test_greedy_takes_the_likeliest_of_the_allowed(shared: LlamaRuntime, allowed: set[int]) -> None:
    values = logits(shared, LAST)
    assert draw(shared, GREEDY, ListedMask(sorted(allowed)), 1) == [max(sorted(allowed), key=lambda t: values[t])]


@pytest.fixture(scope="module")
def shared(test_llama_model: Model) -> Iterator[LlamaRuntime]:
    """One runtime for all examples, which decode nothing."""
    made = make_runtime(test_llama_model)
    feed(made, PROMPT, start=0)
    yield made
    made.close()


def test_penalties_hear_of_forced_tokens(runtime: LlamaRuntime, decoded: Logits) -> None:
    """A single allowed token is not drawn at all, but counts as said."""
    best, second = (int(token) for token in np.argsort(-decoded)[:2])

    class First(ListedMask):
        def allowed(self) -> TokenArray:
            return np.array(sorted([best, second]) if self.accepted else [best], np.int32)

    penalised = replace(GREEDY, presence_penalty=50.0)
    assert draw(runtime, penalised, First([]), 2) == [best, second]


def test_tokens_chosen_elsewhere_reach_the_mask(runtime: LlamaRuntime, decoded: Logits) -> None:
    mask = ListedMask([44, 45])
    sampler = runtime.sampler(FREE, NOTHING, mask)
    sampler.accept(44)
    assert mask.accepted == [44]
    sampler.close()


def test_log_probabilities_are_those_of_the_model(runtime: LlamaRuntime, decoded: Logits) -> None:
    before = runtime.logprobs(LAST, 44, 5)
    draw(runtime, FREE, ListedMask([44, 45]), 1)
    assert runtime.logprobs(LAST, 44, 5) == before


def test_without_a_mask_nothing_is_set_up(runtime: LlamaRuntime, decoded: Logits) -> None:
    draw(runtime, FREE, None, 1)
    assert "_candidates" not in vars(runtime)


def test_a_closed_sampler_is_not_used(runtime: LlamaRuntime, decoded: Logits) -> None:
    sampler = runtime.sampler(FREE, NOTHING, ListedMask([44]))
    sampler.close()
    with pytest.raises(AssertionError, match="closed"):
        sampler.sample(LAST)
