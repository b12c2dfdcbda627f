"""The engine over real models: with ``--exact`` the answer is the same, bit for bit, however the prefix came."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.config import ContextConfig, EngineConfig
from anchorline.engine.engine import Engine
from anchorline.engine.request import CallReport, GenerationRequest
from anchorline.llama.interface import SamplingParams
from anchorline.llama.model import Model
from anchorline.llama.runtime import LlamaRuntime
from tests.support.consumer import Recorder

TOKENS = 48
TOP = 5


@contextmanager
def engine_on(model: Model, *, cache: bool, exact: bool = True, kv: str = "f16", mib: int = 64) -> Iterator[Engine]:
    context = ContextConfig(
        context_tokens=4096, batch_tokens=256, ubatch_tokens=256, threads=1, threads_batch=1, type_k=kv, type_v=kv
    )
    config = EngineConfig(cache=cache, exact=exact, cache_ram_bytes=mib << 20, parallel=2, resident_idle=0)
    runtime = LlamaRuntime(model, context, sequences=2, owns_model=False)
    engine = Engine(runtime, config, clock=time.monotonic)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


Answer = tuple[list[int], list[float]]
"""Ids, and the log-probabilities of the likeliest candidates at each step."""


def ask(engine: Engine, prompt: Prompt, name: str) -> tuple[Answer, CallReport]:
    request = GenerationRequest(
        id=name,
        prompt=prompt,
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_tokens=TOKENS,
        logprobs=TOP,
        received_seconds=time.monotonic(),
    )
    recorder = Recorder()
    engine.submit(request, recorder)
    recorder.wait()
    assert recorder.error is None
    assert recorder.report is not None
    values = [candidate.logprob for token in recorder.sampled for candidate in token.alternatives]
    return (recorder.tokens[0], values), recorder.report


def conversation(seed: int, vocab_size: int, *lengths: int) -> list[Prompt]:
    """Prompts that each extend the one before, with a cut at every message end; heads are equal for all seeds."""
    head = np.random.default_rng(0).integers(3, vocab_size, 300).astype(np.int32)
    rest = np.random.default_rng(seed).integers(3, vocab_size, sum(lengths)).astype(np.int32)
    prompts = []
    for count in range(1, len(lengths) + 1):
        ends = [300 + sum(lengths[:upto]) for upto in range(1, count + 1)]
        tokens = np.concatenate((head, rest[: ends[-1] - 300]))
        cuts = [Cut(300, CutKind.HEAD), *(Cut(end, CutKind.MESSAGE, index) for index, end in enumerate(ends))]
        prompts.append(Prompt(tokens=tokens, cuts=tuple(cuts), tool_fingerprint="t", pin_head=True))
    return prompts


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("model_name", ["test_llama_model", "tiny_smollm2_model"])
def test_off_cold_and_restored_answers_are_bit_identical(
    request: pytest.FixtureRequest, model_name: str, kv: str
) -> None:
    model: Model = request.getfixturevalue(model_name)
    first = conversation(1, model.info.vocab_size, 120, 30, 700, 20, 15)
    second = conversation(2, model.info.vocab_size, 60, 200)
    order = [*first[:3], *second, *first[2:], first[4], second[1]]
    with engine_on(model, cache=False, kv=kv) as off, engine_on(model, cache=True, kv=kv) as on:
        restored = 0
        for index, prompt in enumerate(order):
            expected, cold = ask(off, prompt, str(index))
            answer, report = ask(on, prompt, str(index))
            assert answer == expected, f"prompt {index} was restored to {report.restored_tokens}"
            assert cold.restored_tokens == 0
            restored += report.restored_tokens
        assert restored > sum(len(prompt) for prompt in order) // 2


def test_answers_stay_identical_while_segments_are_evicted(test_llama_model: Model) -> None:
    """A budget of about two conversations, five of them in turn."""
    conversations = [conversation(seed, test_llama_model.info.vocab_size, 600, 40, 40) for seed in range(5)]
    rounds = [conversations[n % 5][n // 5] for n in range(15)]
    with (
        engine_on(test_llama_model, cache=False) as off,
        engine_on(test_llama_model, cache=True, mib=1) as on,
    ):
        for index, prompt in enumerate(rounds):
            expected, _ = ask(off, prompt, str(index))
            answer, _ = ask(on, prompt, str(index))
            assert answer == expected
        assert on.stats().evictions > 0


def test_default_mode_resumes_anywhere_and_differs_from_cold_by_batch_effects_alone(tiny_smollm2_model: Model) -> None:
    """Histories that part in the middle of a message: restored and trimmed to the last common token."""
    base = conversation(3, tiny_smollm2_model.info.vocab_size, 500)[0]
    parted = base.tokens.copy()
    parted[555:] = parted[554]
    prompt = Prompt(tokens=parted)
    other = conversation(4, tiny_smollm2_model.info.vocab_size, 700)[0]
    with engine_on(tiny_smollm2_model, cache=True, exact=False) as engine:
        ask(engine, base, "base")
        ask(engine, other, "other")
        answer, report = ask(engine, prompt, "parted")
        assert report.restored_tokens == 555
    with engine_on(tiny_smollm2_model, cache=False, exact=False) as cold:
        expected, _ = ask(cold, prompt, "parted")
    assert answer[1][:TOP] == pytest.approx(expected[1][:TOP], abs=1.0)
