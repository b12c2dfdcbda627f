"""A prefill that is cancelled goes on where it was, once the request is sent again."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.config import ContextConfig, EngineConfig, ModelConfig
from anchorline.engine.caches import make_cache
from anchorline.engine.loop import EngineLoop
from anchorline.engine.request import GenerationRequest
from anchorline.engine.stream import open_call
from anchorline.llama.interface import MemoryKind, SamplingParams
from anchorline.llama.model import load_model
from anchorline.llama.runtime import LlamaRuntime
from tests.engine.harness import Harness, make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, expected_reply

kinds = pytest.mark.parametrize("kind", list(MemoryKind))
ENGINES = {
    "room for one": EngineConfig(parallel=1, resident_idle=0, cache_ram_bytes=128 << 20),
    "stays resident": EngineConfig(parallel=2, resident_idle=1, cache_ram_bytes=128 << 20),
}


@kinds
@pytest.mark.parametrize("exact", [False, True])
def test_a_cancelled_prefill_whose_cells_were_needed_goes_on_from_the_host(kind: MemoryKind, exact: bool) -> None:
    """Exact chunks that were not whole yet are computed again."""
    runtime = FakeRuntime(context_tokens=500, sequences=1, kind=kind)
    harness = Harness(runtime, parallel=1, resident_idle=0, exact=exact)
    ids = [position * 7 % 40 for position in range(400)]
    call, _ = harness.open(make_prompt(ids, head=100))
    for _ in range(9):
        harness.loop.step()
    done = runtime.decoded_tokens
    assert 100 < done < 200
    harness.loop.cancel(call)
    harness.ask(make_prompt([48] * 450))
    assert not any(live.length == done for live in harness.loop.pool)
    retry = harness.ask(make_prompt(ids, head=100))
    assert retry.tokens.get(0, []) == expected_reply(ids, 4, kind=kind)
    assert retry.report is not None
    assert retry.report.restored_tokens == done


@kinds
def test_cancelled_at_every_step_a_prompt_is_prefilled_once(kind: MemoryKind) -> None:
    runtime = FakeRuntime(context_tokens=500, sequences=2, kind=kind)
    harness = Harness(runtime, parallel=1, resident_idle=1)
    ids = [position * 7 % 40 for position in range(400)]
    while runtime.decoded_tokens < len(ids) - runtime.limits.batch_tokens:
        call, _ = harness.open(make_prompt(ids, head=100))
        harness.loop.step()
        harness.loop.cancel(call)
        harness.run()
    recorder = harness.ask(make_prompt(ids, head=100))
    assert recorder.tokens.get(0, []) == expected_reply(ids, 4, kind=kind)
    assert runtime.decoded_tokens <= len(ids) + 4


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize(
    ("arch", "tokens"),
    [
        ("llama", 4_000),
        ("qwen35", 4_000),
        ("gemma3", 4_000),
        pytest.param("llama", 30_000, marks=pytest.mark.slow),
        pytest.param("qwen35", 30_000, marks=pytest.mark.slow),
    ],
)
def test_three_times_half_of_the_rest_then_the_whole(arch: str, tokens: int, engine: EngineConfig) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}", test_context=32_768))
    context = ContextConfig(
        context_tokens=tokens + 1_000, batch_tokens=256, ubatch_tokens=256, threads=1, threads_batch=1
    )
    runtime = LlamaRuntime(model, context, sequences=2)
    try:
        loop = EngineLoop(runtime, engine, make_cache(engine, runtime, time.monotonic), time.monotonic)
        ids = np.random.default_rng(1).integers(3, 500, tokens).astype(np.int32)
        cuts = (Cut(tokens // 3, CutKind.HEAD), Cut(tokens - 20, CutKind.GENERATION))
        prompt = Prompt(tokens=ids, cuts=cuts, tool_fingerprint="t", pin_head=True)
        stages = [tokens // 2, tokens * 3 // 4, tokens * 7 // 8, tokens]
        for stage, (before, until) in enumerate(pairwise([0, *stages])):
            recorder = prefill(loop, prompt, name=str(stage), tokens=until - before)
        assert recorder.report is not None
        assert recorder.report.restored_tokens >= stages[-2]
        assert loop.decoded_tokens <= 1.05 * tokens
    finally:
        runtime.close()


def prefill(loop: EngineLoop, prompt: Prompt, *, name: str, tokens: int) -> Recorder:
    """Ask, and leave once ``tokens`` more are decoded, unless the call has ended."""
    recorder = Recorder()
    request = GenerationRequest(id=name, prompt=prompt, sampling=SamplingParams(temperature=0.0), max_tokens=1)
    call = open_call(request, recorder, context_tokens=loop.runtime.limits.context_tokens)
    goal = loop.decoded_tokens + tokens
    loop.open(call)
    while not recorder.has_ended and loop.decoded_tokens < goal:
        loop.step()
    if not recorder.has_ended:
        loop.cancel(call)
    while loop.has_work:
        loop.step()
    return recorder
