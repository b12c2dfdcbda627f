"""Decoding, lengths and what happens when llama.cpp says no."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from anchorline.config import ContextConfig, ModelConfig
from anchorline.errors import BackendFailure
from anchorline.llama.interface import DecodeStatus, MemoryKind, Runtime
from anchorline.llama.model import Model, load_model
from anchorline.llama.runtime import LlamaRuntime
from tests.support.runtimes import feed, logits, make_runtime, random_tokens


def test_it_is_a_runtime(runtime: LlamaRuntime) -> None:
    typed: Runtime = runtime
    assert typed.capabilities.kind is MemoryKind.PLAIN
    limits = typed.limits
    assert (limits.context_tokens, limits.sequences, limits.vocab_size) == (2048, 3, 512)
    assert (limits.batch_tokens, limits.ubatch_tokens) == (2048, 512)
    # Four layers of one K and one V head of 32 f16 values, and 12 bytes for the cell.
    assert limits.bytes_per_token == 4 * 2 * 32 * 2 + 12


def test_a_new_runtime_is_empty(runtime: LlamaRuntime) -> None:
    assert [runtime.length(sequence) for sequence in range(3)] == [0, 0, 0]
    assert (runtime.batch.size, runtime.batch.room) == (0, 2048)


def test_sequences_in_one_batch_do_not_disturb_each_other(runtime: LlamaRuntime) -> None:
    long, short = random_tokens(70, seed=1), random_tokens(20, seed=2)
    alone = feed(runtime, short, start=0, sequence=1)
    runtime.remove(1, 0)
    runtime.batch.clear()
    first = runtime.batch.add(long, start=0, sequence=0, output=True)
    second = runtime.batch.add(short, start=0, sequence=1, output=True)
    assert runtime.decode() is DecodeStatus.OK
    assert [runtime.length(sequence) for sequence in range(3)] == [70, 20, 0]
    np.testing.assert_allclose(logits(runtime, second), alone, atol=0.05)
    assert np.abs(logits(runtime, first) - logits(runtime, second)).max() > 1


def test_the_prefix_decides_the_next_token(runtime: LlamaRuntime) -> None:
    """The test model's logits tell histories apart that differ far back."""
    tokens = random_tokens(400)
    other = tokens.copy()
    other[3] = (other[3] + 1) % 500
    assert np.abs(feed(runtime, tokens, start=0) - feed(runtime, other, start=0, sequence=1)).max() > 0.005


def test_a_fork_shares_cells_and_goes_its_own_way(test_llama_model: Model) -> None:
    runtime = make_runtime(test_llama_model, context_tokens=512)
    tokens = random_tokens(300)
    feed(runtime, tokens, start=0)
    runtime.copy_sequence(0, 1, 0, 300)
    # 600 tokens would not fit; the cells are shared.
    assert (runtime.length(0), runtime.length(1)) == (300, 300)
    feed(runtime, random_tokens(20, seed=3), start=300, sequence=1)
    runtime.remove(0, 0)
    assert (runtime.length(0), runtime.length(1)) == (0, 320)
    runtime.close()


def test_trimming_and_going_on_equals_a_straight_run(runtime: LlamaRuntime) -> None:
    tokens = random_tokens(100)
    feed(runtime, tokens[:60], start=0)
    straight = feed(runtime, tokens[60:], start=60)
    runtime.remove(0, 60)
    assert runtime.length(0) == 60
    assert np.array_equal(straight, feed(runtime, tokens[60:], start=60))


@pytest.mark.parametrize("prompt", [200, 700])
def test_no_cells_changes_nothing(test_llama_model: Model, prompt: int) -> None:
    """Also when the batch spans two ubatches, of which the first would have fitted."""
    runtime = make_runtime(test_llama_model, context_tokens=1024)
    filled = 1024 - prompt + 10
    feed(runtime, random_tokens(filled), start=0)
    runtime.batch.clear()
    runtime.batch.add(random_tokens(prompt, seed=2), start=0, sequence=1, output=True)
    assert runtime.decode() is DecodeStatus.NO_CELLS
    assert (runtime.length(0), runtime.length(1)) == (filled, 0)
    runtime.remove(0, 0)
    assert runtime.decode() is DecodeStatus.OK
    assert (runtime.length(0), runtime.length(1)) == (0, prompt)
    runtime.close()


def test_positions_with_a_gap_are_a_failure(runtime: LlamaRuntime) -> None:
    feed(runtime, random_tokens(10), start=0)
    runtime.batch.clear()
    runtime.batch.add(random_tokens(3), start=12, sequence=0, output=True)
    with pytest.raises(BackendFailure, match=r"llama_decode returned -1: .*positions remain consecutive"):
        runtime.decode()
    assert runtime.length(0) == 10


def test_logits_of_a_token_without_output_are_a_failure(runtime: LlamaRuntime) -> None:
    feed(runtime, random_tokens(10), start=0)
    with pytest.raises(BackendFailure, match="no logits at batch index 3"):
        runtime.logprobs(3, 0, 1)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda runtime: runtime.length(3),
        lambda runtime: runtime.remove(-1, 0),
        lambda runtime: runtime.copy_sequence(0, 3, 0, 1),
        lambda runtime: runtime.copy_sequence(0, 0, 0, 1),
        lambda runtime: runtime.copy_sequence(0, 1, 5, 5),
        lambda runtime: runtime.decode(),
    ],
)
def test_misuse_is_asserted(runtime: LlamaRuntime, misuse: Callable[[LlamaRuntime], object]) -> None:
    with pytest.raises(AssertionError):
        misuse(runtime)


def test_closing_frees_the_model_and_may_be_repeated() -> None:
    model = load_model(ModelConfig(model="test:llama"))
    runtime = LlamaRuntime(model, ContextConfig(context_tokens=256, threads=1), sequences=1)
    runtime.close()
    assert model.handle is None
    runtime.close()
    model.close()


def test_end_of_generation(runtime: LlamaRuntime, test_llama_model: Model) -> None:
    control = test_llama_model.tokenizer.control_tokens
    assert runtime.is_end_of_generation(control["<|im_end|>"])
    assert not runtime.is_end_of_generation(control["<|im_start|>"])
    assert not runtime.is_end_of_generation(5)
