"""Sampling: reproducible, forced, forbidden, penalised; and log-probabilities against numpy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anchorline.llama.dry import KEPT_SAMPLERS
from anchorline.llama.interface import SamplingParams, TokenArray
from anchorline.llama.library import api
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from anchorline.llama.sampler import bounded, log_probabilities
from tests.support.runtimes import Logits, feed, logits, make_runtime, random_tokens

PROMPT = random_tokens(60)
NOTHING = random_tokens(0)
LAST = len(PROMPT) - 1
GREEDY = SamplingParams(temperature=0)
FREE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture
def decoded(runtime: LlamaRuntime) -> Logits:
    return feed(runtime, PROMPT, start=0)


def draw(runtime: LlamaRuntime, params: SamplingParams, count: int = 20, history: TokenArray = NOTHING) -> list[int]:
    """Draw ``count`` times from the same logits with one chain."""
    sampler = runtime.sampler(params, history)
    drawn = [sampler.sample(LAST) for _ in range(count)]
    sampler.close()
    return drawn


def test_greedy_is_argmax(runtime: LlamaRuntime, decoded: Logits) -> None:
    assert draw(runtime, GREEDY, 3) == [int(decoded.argmax())] * 3


@pytest.mark.parametrize("mirostat", [0, 1, 2])
def test_equal_seeds_draw_equally(runtime: LlamaRuntime, decoded: Logits, mirostat: int) -> None:
    params = replace(FREE, temperature=2.0, seed=7, mirostat=mirostat, mirostat_tau=8.0)
    first = draw(runtime, params)
    assert first == draw(runtime, params)
    assert first != draw(runtime, replace(params, seed=8))
    assert len(set(first)) > 3


def test_no_seed_is_a_fresh_seed(runtime: LlamaRuntime, decoded: Logits) -> None:
    params = replace(FREE, temperature=3.0)
    assert draw(runtime, params, 40) != draw(runtime, params, 40)


def test_logit_bias_forces_and_forbids(runtime: LlamaRuntime, decoded: Logits) -> None:
    best = int(decoded.argmax())
    assert draw(runtime, replace(GREEDY, logit_bias=((44, 1000.0),)), 1) == [44]
    assert draw(runtime, replace(FREE, seed=1, logit_bias=((44, 1000.0),)), 3) == [44] * 3
    second = int(np.argsort(decoded)[-2])
    assert draw(runtime, replace(GREEDY, logit_bias=((best, float("-inf")),)), 1) == [second]


def test_ignore_eos_forbids_every_end_of_generation(runtime: LlamaRuntime, decoded: Logits) -> None:
    ends = [token for token in range(512) if runtime.is_end_of_generation(token)]
    assert len(ends) == 2
    pushed = replace(FREE, seed=1, logit_bias=tuple((token, 50.0) for token in ends))
    assert set(draw(runtime, pushed)) <= set(ends)
    assert not set(draw(runtime, replace(pushed, ignore_eos=True))) & set(ends)


def test_truncation_narrows_the_candidates(runtime: LlamaRuntime, decoded: Logits) -> None:
    order = [int(token) for token in np.argsort(-decoded)]
    hot = replace(FREE, temperature=5.0, seed=3)
    assert set(draw(runtime, replace(hot, top_k=3), 60)) == set(order[:3])
    assert set(draw(runtime, replace(hot, top_p=0.01), 20)) == {order[0]}
    assert set(draw(runtime, replace(hot, min_p=0.999), 20)) == {order[0]}
    assert len(set(draw(runtime, replace(hot, typical_p=0.01), 20))) < 5
    assert set(draw(runtime, replace(hot, top_n_sigma=0.01), 20)) == {order[0]}
    assert order[0] not in draw(runtime, replace(hot, xtc_probability=1.0, xtc_threshold=0.01), 60)
    assert len(set(draw(runtime, hot, 60))) > 20


@pytest.mark.parametrize(
    "params",
    [
        replace(GREEDY, repeat_penalty=1.9),
        replace(GREEDY, presence_penalty=20.0),
        replace(GREEDY, frequency_penalty=20.0),
    ],
)
def test_penalties_look_back_at_the_history(runtime: LlamaRuntime, decoded: Logits, params: SamplingParams) -> None:
    best = int(decoded.argmax())
    history = np.full(3, best, np.int32)
    assert draw(runtime, params, 1) == [best]
    assert draw(runtime, params, 1, history) != [best]
    # Out of the window, and switched off by an empty window.
    far = np.concatenate([history, random_tokens(200, seed=9, below=20)])
    assert draw(runtime, params, 1, far) == [best]
    assert draw(runtime, replace(params, repeat_last_n=-1), 1, far) != [best]
    assert draw(runtime, replace(params, repeat_last_n=0), 1, history) == [best]


def test_penalties_accept_what_was_drawn(runtime: LlamaRuntime, decoded: Logits) -> None:
    first, second, *_ = draw(runtime, replace(GREEDY, presence_penalty=20.0), 4)
    assert first == int(decoded.argmax())
    assert second != first


def test_penalties_accept_what_was_chosen_elsewhere(runtime: LlamaRuntime, decoded: Logits) -> None:
    best = int(decoded.argmax())
    sampler = runtime.sampler(replace(GREEDY, presence_penalty=20.0), NOTHING)
    sampler.accept(best)
    assert sampler.sample(LAST) != best
    sampler.close()
    with pytest.raises(AssertionError, match="closed"):
        sampler.accept(best)


def test_dry_breaks_repetition(runtime: LlamaRuntime, decoded: Logits) -> None:
    best = int(decoded.argmax())
    history = np.array([20, 21, 22, 23, best, 30, 31, 20, 21, 22, 23], np.int32)
    dry = replace(GREEDY, dry_multiplier=50.0, dry_sequence_breakers=())
    assert draw(runtime, GREEDY, 1, history) == [best]
    assert draw(runtime, dry, 1, history) != [best]
    assert draw(runtime, replace(dry, dry_penalty_last_n=0), 1, history) == [best]
    assert draw(runtime, replace(dry, dry_sequence_breakers=("\n", "", "x" * 100)), 1, history) != [best]


HUGE = 2**31 - 1


@pytest.mark.parametrize("given", [HUGE, -1])
@pytest.mark.parametrize("mirostat", [0, 1])
def test_no_count_larger_than_context_or_vocabulary_reaches_llama_cpp(
    runtime: LlamaRuntime, decoded: Logits, monkeypatch: pytest.MonkeyPatch, given: int, mirostat: int
) -> None:
    seen: list[tuple[str, int]] = []

    def recording(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            seen.extend((name, value) for value in arguments if type(value) is int and value != runtime._vocab)
            return real(*arguments)

        return record

    for name in [name for name in dir(api) if name.startswith("llama_sampler_init_")]:
        monkeypatch.setattr(api, name, recording(name, getattr(api, name)))
    params = SamplingParams(
        top_k=given,
        repeat_penalty=1.1,
        repeat_last_n=given,
        dry_multiplier=0.5,
        dry_allowed_length=given,
        dry_penalty_last_n=given,
        mirostat=mirostat,
        seed=7,
    )
    draw(runtime, params, 1, PROMPT)
    bound = max(runtime.limits.context_tokens, runtime.limits.vocab_size)
    assert seen
    assert [(name, value) for name, value in seen if not 0 <= value <= bound] == []


def test_counts_within_their_bounds_are_left_alone() -> None:
    params = SamplingParams(top_k=5, repeat_last_n=6, dry_allowed_length=7, dry_penalty_last_n=8)
    assert bounded(params, context_tokens=100, vocab_size=100) == params


def test_a_dry_sampler_is_built_once_for_its_settings(runtime: LlamaRuntime, decoded: Logits) -> None:
    dry = replace(GREEDY, dry_multiplier=50.0, dry_sequence_breakers=("\n", "ab"))
    for _ in range(3):
        runtime.sampler(dry, PROMPT).close()
    assert runtime._dry.built == 1
    runtime.sampler(replace(dry, dry_sequence_breakers=("\n", "", "ab", "\n")), PROMPT).close()
    assert runtime._dry.built == 1
    others: list[dict[str, Any]] = [
        {"dry_sequence_breakers": ("\n",)},
        {"dry_multiplier": 1.0},
        {"dry_base": 2.0},
        {"dry_allowed_length": 3},
        {"dry_penalty_last_n": 9},
    ]
    for count, other in enumerate(others, 2):
        runtime.sampler(replace(dry, **other), PROMPT).close()
        assert runtime._dry.built == count


def test_a_dry_sampler_is_built_ahead_on_another_thread(runtime: LlamaRuntime, decoded: Logits) -> None:
    dry = replace(GREEDY, dry_multiplier=50.0, dry_sequence_breakers=("\n", "ab"))
    threads = [threading.Thread(target=runtime.prepare_sampler, args=(params,)) for params in (dry, GREEDY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runtime._dry.built == 1
    runtime.prepare_sampler(dry)
    runtime.sampler(dry, PROMPT).close()
    assert runtime._dry.built == 1


def test_what_is_built_ahead_of_a_closed_runtime_is_not_kept(test_llama_model: Model) -> None:
    runtime = make_runtime(test_llama_model)
    runtime.close()
    runtime.prepare_sampler(replace(GREEDY, dry_multiplier=1.0))
    assert not runtime._dry._kept


def test_copied_dry_samplers_share_no_history(runtime: LlamaRuntime, decoded: Logits) -> None:
    best = int(decoded.argmax())
    history = np.array([20, 21, 22, 23, best, 30, 31, 20, 21, 22, 23], np.int32)
    dry = replace(GREEDY, dry_multiplier=50.0, dry_sequence_breakers=())
    assert draw(runtime, dry, 1) == [best]
    first = draw(runtime, dry, 5, history)
    assert first[0] != best
    assert draw(runtime, dry, 5, history) == first
    assert draw(runtime, dry, 1) == [best]


def test_only_few_dry_samplers_are_kept(runtime: LlamaRuntime, decoded: Logits) -> None:
    for span in range(1, KEPT_SAMPLERS + 4):
        runtime.sampler(replace(GREEDY, dry_multiplier=1.0, dry_penalty_last_n=span), NOTHING).close()
    assert len(runtime._dry._kept) == KEPT_SAMPLERS
    runtime.sampler(replace(GREEDY, dry_multiplier=1.0, dry_penalty_last_n=KEPT_SAMPLERS + 3), NOTHING).close()
    assert runtime._dry.built == KEPT_SAMPLERS + 3


def test_each_sequence_samples_from_its_own_logits(runtime: LlamaRuntime) -> None:
    runtime.batch.clear()
    indices = [
        runtime.batch.add(random_tokens(20, seed=seed), start=0, sequence=seed, output=True) for seed in range(3)
    ]
    runtime.decode()
    sampler = runtime.sampler(GREEDY, NOTHING)
    drawn = [sampler.sample(index) for index in indices]
    assert drawn == [int(logits(runtime, index).argmax()) for index in indices]
    assert len(set(drawn)) > 1
    sampler.close()


def test_a_closed_sampler_is_not_used(runtime: LlamaRuntime, decoded: Logits) -> None:
    sampler = runtime.sampler(GREEDY, NOTHING)
    sampler.close()
    sampler.close()
    with pytest.raises(AssertionError, match="closed"):
        sampler.sample(LAST)


def test_logprobs_are_the_softmax_of_the_raw_logits(runtime: LlamaRuntime, decoded: Logits) -> None:
    chosen, top = runtime.logprobs(LAST, 44, 5)
    exact = decoded.astype(np.float64) - np.logaddexp.reduce(decoded.astype(np.float64))
    assert chosen.token == 44
    assert chosen.logprob == pytest.approx(exact[44], abs=1e-5)
    assert [entry.token for entry in top] == [int(token) for token in np.argsort(-decoded)[:5]]
    assert [entry.logprob for entry in top] == pytest.approx(sorted(exact, reverse=True)[:5], abs=1e-5)


def test_logprobs_at_the_edges() -> None:
    values = np.array([0.0, 3.0, 3.0, -np.inf], np.float32)
    chosen, none = log_probabilities(values, 3, 0)
    assert (chosen.logprob, none) == (-np.inf, ())
    _chosen, possible = log_probabilities(values, 0, 4)
    assert [entry.token for entry in possible] == [1, 2, 0]
    _chosen, everything = log_probabilities(values, 0, 99)
    assert [entry.token for entry in everything] == [1, 2, 0, 3]
    assert sum(np.exp(entry.logprob) for entry in everything) == pytest.approx(1.0)


def test_the_default_chain_runs_on_a_real_vocabulary(tiny_smollm2_model: Model) -> None:
    runtime = make_runtime(tiny_smollm2_model, context_tokens=256)
    feed(runtime, tiny_smollm2_model.tokenizer.tokenize("The capital of France is"), start=0)
    sampler = runtime.sampler(SamplingParams(seed=1, dry_multiplier=0.8, repeat_penalty=1.1), NOTHING)
    assert 0 <= sampler.sample(runtime.batch.size - 1) < runtime.limits.vocab_size
    runtime.close()
