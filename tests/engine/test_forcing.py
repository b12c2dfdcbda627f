"""Tokens that a request's forcer chooses: decoded, reported, accepted and cached like sampled ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.prompt import Prompt
from anchorline.engine.request import FinishReason, GenerationRequest, PlanKind
from anchorline.llama.interface import SamplingParams, TokenArray
from anchorline.llama.model import Model
from anchorline.llama.testvocabulary import VOCAB_SIZE
from tests.engine.exact import engine_on
from tests.engine.harness import Harness, make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import END_TOKEN, FakeRuntime, FakeSampler, expected_reply
from tests.support.runtimes import random_tokens

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]


@dataclass
class Script:
    """Forces the given ids at the given places of the reply; asserts that it is shown the reply itself."""

    at: dict[int, int]
    seen: dict[int, list[list[int]]] = field(default_factory=dict)

    def force(self, choice: int, generated: TokenArray) -> int | None:
        self.seen.setdefault(choice, []).append(generated.tolist())
        return self.at.get(generated.size)


def expected_with(prompt: list[int], at: dict[int, int], *, max_tokens: int, salt: int = 0) -> list[int]:
    """What the fake generates when some places are forced."""
    reply: list[int] = []
    while len(reply) < max_tokens:
        free = expected_reply([*prompt, *reply], 1, salt=salt)
        token = at.get(len(reply), free[0] if free else END_TOKEN)
        if token == END_TOKEN:
            break
        reply.append(token)
    return reply


def test_a_whole_forced_reply_ends_with_its_end_token() -> None:
    harness = Harness(FakeRuntime())
    script = Script(dict(enumerate([30, 31, 32, END_TOKEN])))
    _, recorder = harness.open(make_prompt(PROMPT), max_tokens=20, forcer=script)
    harness.run()
    assert recorder.tokens == {0: [30, 31, 32]}
    assert recorder.finishes == {0: FinishReason.STOP}
    assert script.seen == {0: [[], [30], [30, 31], [30, 31, 32]]}


@given(
    at=st.dictionaries(st.integers(0, 11), st.integers(0, END_TOKEN)),
    max_tokens=st.integers(1, 12),
    choices=st.integers(1, 3),
)
def test_what_is_left_free_follows_from_what_was_forced(at: dict[int, int], max_tokens: int, choices: int) -> None:
    harness = Harness(FakeRuntime())
    _, recorder = harness.open(
        make_prompt(PROMPT), max_tokens=max_tokens, choices=choices, seed=5, forcer=Script(dict(at))
    )
    harness.run()
    for choice in range(choices):
        expected = expected_with(PROMPT, at, max_tokens=max_tokens, salt=5 + choice)
        assert recorder.tokens.get(choice, []) == expected


def test_the_sampler_accepts_forced_tokens_and_draws_none_in_their_place() -> None:
    harness = Harness(FakeRuntime())
    call, recorder = harness.open(make_prompt(PROMPT), max_tokens=4, forcer=Script({0: 30, 2: 31}))
    while not recorder.sampled:
        harness.loop.step()
    sampler = cast(FakeSampler, call.streams[0].sampler)
    harness.run()
    assert sampler.accepted == recorder.tokens[0]
    assert sampler.accepted[0::2] == [30, 31]


def test_a_preempted_stream_is_forced_on_where_it_stopped() -> None:
    runtime = FakeRuntime(context_tokens=100)
    harness = Harness(runtime)
    scripts = [dict(enumerate([*range(start, start + 40), END_TOKEN])) for start in (0, 3, 6)]
    prompts = [[seed, *range(30)] for seed in (41, 42, 43)]
    opened = [
        harness.open(make_prompt(ids), max_tokens=60, forcer=Script(script))[1]
        for ids, script in zip(prompts, scripts, strict=True)
    ]
    harness.run()
    assert harness.loop.preemptions > 0
    for script, recorder in zip(scripts, opened, strict=True):
        assert recorder.tokens[0] == list(script.values())[:-1]


def test_the_next_turn_restores_a_forced_reply() -> None:
    harness = Harness(FakeRuntime())
    reply = [30, 31, 32, 33]
    harness.open(make_prompt(PROMPT), max_tokens=9, forcer=Script(dict(enumerate([*reply, END_TOKEN]))))
    harness.run()
    report = harness.report(make_prompt([*PROMPT, *reply, 40, 41]))
    assert report.plan is PlanKind.CONTINUE
    assert report.prefilled_tokens == 2


@pytest.mark.parametrize("architecture", ["llama", "qwen35"])
def test_a_real_model_computes_what_was_forced(test_models: Callable[[str], Model], architecture: str) -> None:
    model = test_models(architecture)
    prompt = random_tokens(80)
    forced = random_tokens(6, seed=3).tolist()
    free = 10
    with engine_on(model, cache=False) as engine:
        alone = _generate(engine.submit, prompt, max_tokens=len(forced) + free, forcer=Script(dict(enumerate(forced))))
        behind = np.concatenate((prompt, np.array(forced, np.int32)))
        plain = _generate(engine.submit, behind, max_tokens=free, forcer=None)
    assert alone[: len(forced)] == forced
    assert alone[len(forced) :] == plain
    assert max(alone) < VOCAB_SIZE


def _generate(
    submit: Callable[[GenerationRequest, Recorder], None],
    tokens: TokenArray,
    *,
    max_tokens: int,
    forcer: Script | None,
) -> list[int]:
    recorder = Recorder()
    request = GenerationRequest(
        id=f"forced-{tokens.size}",
        prompt=Prompt(tokens=tokens),
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_tokens=max_tokens,
        forcer=forcer,
    )
    submit(request, recorder)
    recorder.wait()
    return recorder.tokens[0]
