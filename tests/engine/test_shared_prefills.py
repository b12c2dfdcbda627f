"""Requests that arrive while another prefills the same head: it is prefilled once, whatever becomes of the other."""

from __future__ import annotations

import time

import numpy as np
import pytest

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.config import ModelConfig
from anchorline.engine.engine import Engine
from anchorline.engine.request import GenerationRequest, PlanKind
from anchorline.engine.stream import Call
from anchorline.errors import Cancelled
from anchorline.llama.interface import MemoryKind, SamplingParams
from anchorline.llama.model import load_model
from tests.engine.exact import engine_on
from tests.engine.harness import Harness, make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, Faults, expected_reply

HEAD_TOKENS = 7_000
OWN_TOKENS = 60
AGENTS = 4

kinds = pytest.mark.parametrize("kind", list(MemoryKind))


def agent_prompt(name: int, *, head_tokens: int = 300) -> Prompt:
    """A sub-agent's prompt: the head of all agents, and a message of its own."""
    head = [position * 7 % 40 for position in range(head_tokens)]
    own = [41 + name, *((position * 3 + name) % 40 for position in range(OWN_TOKENS - 1))]
    return make_prompt([*head, *own], head=head_tokens, ends=(head_tokens + OWN_TOKENS,), pin=True)


def make(kind: MemoryKind, *, parallel: int = AGENTS, context_tokens: int = 20_000, batch: int = 512) -> Harness:
    runtime = FakeRuntime(context_tokens=context_tokens, sequences=parallel, batch_tokens=batch, kind=kind)
    return Harness(runtime, parallel=parallel, resident_idle=0, step_seconds=0.1)


def open_agents(harness: Harness, count: int = AGENTS, **sizes: int) -> list[tuple[Call, Recorder, Prompt]]:
    prompts = [agent_prompt(name, **sizes) for name in range(count)]
    return [(*harness.open(prompt), prompt) for prompt in prompts]


def check(harness: Harness, recorder: Recorder, prompt: Prompt) -> None:
    assert recorder.error is None
    kind = harness.runtime.capabilities.kind
    assert recorder.tokens.get(0, []) == expected_reply(prompt.tokens.tolist(), 4, kind=kind)


@kinds
def test_four_agents_at_once_prefill_their_head_once(kind: MemoryKind) -> None:
    harness = make(kind)
    agents = open_agents(harness, head_tokens=HEAD_TOKENS)
    harness.loop.step()
    assert [stream.hold is not None for stream in harness.loop.waiting] == [True] * (AGENTS - 1)
    harness.run()
    for _, recorder, prompt in agents:
        check(harness, recorder, prompt)
    reports = [recorder.report for _, recorder, _ in agents if recorder.report is not None]
    assert sum(report.prefilled_tokens for report in reports) == HEAD_TOKENS + AGENTS * OWN_TOKENS
    assert {report.plan for report in reports[1:]} == {PlanKind.FORK}
    assert all(0 < report.sharing_seconds <= report.queue_seconds for report in reports[1:])
    assert reports[0].sharing_seconds == 0
    generated = sum(report.generated_tokens for report in reports)
    assert harness.runtime.decoded_tokens <= HEAD_TOKENS + AGENTS * OWN_TOKENS + generated


@pytest.mark.parametrize("arch", ["llama", "qwen35", "gemma3"])
def test_four_agents_on_a_real_model_prefill_their_head_once(arch: str) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}", test_context=16_384))
    try:
        prompts = [real_agent_prompt(name) for name in range(AGENTS)]
        with engine_on(model, cache=True, exact=False, parallel=AGENTS, context_tokens=16_384) as engine:
            recorders = [submit(engine, prompt) for prompt in prompts]
            reports = [recorder.wait().report for recorder in recorders]
        with engine_on(model, cache=False, exact=False, parallel=AGENTS, context_tokens=16_384) as engine:
            alone = submit(engine, prompts[-1]).wait()
    finally:
        model.close()
    prefilled = sum(report.prefilled_tokens for report in reports if report is not None)
    assert prefilled == HEAD_TOKENS + AGENTS * OWN_TOKENS
    assert recorders[-1].tokens == alone.tokens


def submit(engine: Engine, prompt: Prompt) -> Recorder:
    recorder = Recorder()
    request = GenerationRequest(
        id=f"{id(recorder)}",
        prompt=prompt,
        sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        max_tokens=8,
        received_seconds=time.monotonic(),
    )
    engine.submit(request, recorder)
    return recorder


def real_agent_prompt(name: int) -> Prompt:
    head = np.random.default_rng(0).integers(3, 500, HEAD_TOKENS)
    own = np.random.default_rng(name + 1).integers(3, 500, OWN_TOKENS)
    own[0] = 3 + name
    return Prompt(
        tokens=np.concatenate((head, own)).astype(np.int32),
        cuts=(Cut(HEAD_TOKENS, CutKind.HEAD),),
        tool_fingerprint="t",
        pin_head=True,
    )


@kinds
def test_a_cancelled_source_leaves_its_work_to_the_next(kind: MemoryKind) -> None:
    harness = make(kind, batch=64)
    agents = open_agents(harness)
    for _ in range(3):
        harness.loop.step()
    done = harness.runtime.decoded_tokens
    harness.loop.cancel(agents[0][0])
    harness.run()
    assert isinstance(agents[0][1].error, Cancelled)
    for _, recorder, prompt in agents[1:]:
        check(harness, recorder, prompt)
    reports = [recorder.report for _, recorder, _ in agents[1:] if recorder.report is not None]
    assert 0 < done < 300
    assert sum(report.prefilled_tokens for report in reports) == 300 - done + (AGENTS - 1) * OWN_TOKENS


@kinds
def test_a_source_that_fails_is_followed_by_the_next(kind: MemoryKind) -> None:
    harness = make(kind, batch=64)
    agents = open_agents(harness)
    for _ in range(2):
        harness.loop.step()
    harness.runtime.faults = Faults(decode=1.0)
    harness.loop.step()
    harness.runtime.faults = Faults()
    harness.run()
    assert agents[0][1].error is not None
    for _, recorder, prompt in agents[1:]:
        check(harness, recorder, prompt)
    reports = [recorder.report for _, recorder, _ in agents[1:] if recorder.report is not None]
    assert sum(report.prefilled_tokens for report in reports) == 300 + (AGENTS - 1) * OWN_TOKENS


@kinds
def test_a_pool_too_small_for_all_still_prefills_the_head_once(kind: MemoryKind) -> None:
    harness = make(kind, context_tokens=600, batch=64)
    agents = open_agents(harness)
    harness.run()
    for _, recorder, prompt in agents:
        check(harness, recorder, prompt)
    reports = [recorder.report for _, recorder, _ in agents if recorder.report is not None]
    assert sum(report.prefilled_tokens for report in reports) == 300 + AGENTS * OWN_TOKENS


def test_an_unrelated_call_is_started_past_a_held_one() -> None:
    harness = make(MemoryKind.PLAIN, parallel=2, batch=64)
    (_, source, _), (held_call, held, held_prompt) = open_agents(harness, 2)
    _, title = harness.open(make_prompt([5, 6, 7]))
    harness.loop.step()
    assert [stream.call for stream in harness.loop.waiting] == [held_call]
    harness.run()
    assert title.report is not None
    assert source.report is not None
    check(harness, held, held_prompt)


def test_once_its_hold_is_over_a_stream_goes_before_those_behind_it() -> None:
    """Two streams fit; while the first is prefilled the second stream's place goes to short calls, in turn."""
    harness = make(MemoryKind.PLAIN, parallel=2, batch=64)
    (_, _, _), (held_call, held, held_prompt) = open_agents(harness, 2)
    short = [harness.open(make_prompt([5, 6, 7, name]), max_tokens=1)[1] for name in range(40)]
    while held_call.admitted_seconds is None:
        harness.loop.step()
    assert not all(recorder.has_ended for recorder in short)
    harness.run()
    check(harness, held, held_prompt)
    assert held.report is not None
    assert held.report.prefilled_tokens == OWN_TOKENS


@kinds
def test_one_that_was_held_may_be_held_again_for_a_longer_prefix(kind: MemoryKind) -> None:
    """Two of three go on together behind the head: the third waits for the head, then for the second."""
    harness = make(kind, batch=64)
    long = [*agent_prompt(0).tokens.tolist(), *([7, 8, 9] * 40)]
    branches = [make_prompt([*long, 20 + name, 3], head=300, ends=(len(long),), pin=True) for name in range(2)]
    _, first = harness.open(agent_prompt(3))
    opened = [harness.open(branch)[1] for branch in branches]
    harness.run()
    check(harness, first, agent_prompt(3))
    for recorder, branch in zip(opened, branches, strict=True):
        check(harness, recorder, branch)
    reports = [recorder.report for recorder in (first, *opened) if recorder.report is not None]
    assert [report.prefilled_tokens for report in reports] == [300 + OWN_TOKENS, len(long) - 300 + 2, 2]


@kinds
def test_a_state_is_there_for_one_that_finds_no_free_stream_at_its_turn(kind: MemoryKind) -> None:
    """The source has gone on, and its first save was still under way when it passed the place to resume."""
    harness = make(kind, parallel=2)
    shared = agent_prompt(0)
    _, source = harness.open(endless(Prompt(tokens=np.append(shared.tokens, 5), cuts=shared.cuts), kind), max_tokens=40)
    _, branch = harness.open(Prompt(tokens=np.append(shared.tokens, (6, 7, 8)), cuts=shared.cuts))
    _, other = harness.open(endless(make_prompt([1]), kind), max_tokens=20)
    while not other.has_ended:
        harness.loop.step()
    assert source.sampled
    assert not source.has_ended
    harness.run()
    assert branch.report is not None
    assert branch.report.prefilled_tokens == 3


def endless(prompt: Prompt, kind: MemoryKind) -> Prompt:
    """``prompt`` with as many 9s behind it as it takes for a reply of forty tokens."""
    while len(expected_reply(prompt.tokens.tolist(), 40, kind=kind)) < 40:
        prompt = Prompt(tokens=np.append(prompt.tokens, np.int32(9)), cuts=prompt.cuts)
    return prompt


def test_a_request_that_refuses_the_cache_neither_waits_nor_is_waited_for() -> None:
    harness = make(MemoryKind.PLAIN, batch=64)
    harness.open(agent_prompt(0), use_cache=False)
    harness.open(agent_prompt(1))
    harness.open(agent_prompt(2), use_cache=False)
    harness.loop.step()
    assert not harness.loop.waiting
    harness.run()


def test_cancelling_a_held_call_leaves_the_others_alone() -> None:
    harness = make(MemoryKind.PLAIN, batch=64)
    agents = open_agents(harness)
    harness.loop.step()
    harness.loop.cancel(agents[1][0])
    harness.run()
    assert isinstance(agents[1][1].error, Cancelled)
    for _, recorder, prompt in (agents[0], *agents[2:]):
        check(harness, recorder, prompt)
