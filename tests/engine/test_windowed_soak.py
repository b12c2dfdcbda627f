"""A windowed model under a long alternation: it never dies, and its cells come back."""

from __future__ import annotations

import random
import time

from anchorline.config import ContextConfig, EngineConfig, ModelConfig
from anchorline.engine.engine import Engine
from anchorline.engine.request import GenerationRequest
from anchorline.llama.interface import SamplingParams
from anchorline.llama.model import load_model
from anchorline.llama.runtime import LlamaRuntime
from tests.engine.exact import conversation
from tests.support.consumer import Recorder

CONTEXT = 2048
REQUESTS = 500


def test_five_hundred_alternating_requests_over_three_contexts() -> None:
    """Each conversation holds 40 % of the context, so no two fit with a third; forks and evictions included."""
    model = load_model(ModelConfig(model="test:gemma3"))
    context = ContextConfig(context_tokens=CONTEXT, batch_tokens=512, ubatch_tokens=512, threads=1, threads_batch=1)
    config = EngineConfig(parallel=3, resident_idle=2, cache_ram_bytes=2 << 20)
    runtime = LlamaRuntime(model, context, sequences=5, owns_model=True)
    engine = Engine(runtime, config, clock=time.monotonic)
    engine.start()
    draw = random.Random(1)
    talks = [conversation(seed, model.info.vocab_size, *[26] * 20) for seed in range(3)]
    waiting: list[Recorder] = []
    try:
        for number in range(REQUESTS):
            talk = talks[number % 3]
            request = GenerationRequest(
                id=str(number),
                prompt=talk[draw.randrange(len(talk))],
                sampling=SamplingParams(temperature=0.0, ignore_eos=True),
                max_tokens=draw.choice([1, 4, 40]),
                choices=draw.choice([1, 1, 1, 2]),
                received_seconds=time.monotonic(),
            )
            waiting.append(recorder := Recorder())
            engine.submit(request, recorder)
            if number % 7 == 3:
                engine.cancel(str(number))
            if len(waiting) > 4:
                waiting.pop(0).wait()
        for recorder in waiting:
            recorder.wait()
        stats = engine.stats()
        assert stats.alive
        assert stats.cache.evictions > 0
        # Every cell can be used again: a prompt that fills the context to its end is answered.
        full = conversation(9, model.info.vocab_size, CONTEXT - 300 - 2)[0]
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        request = GenerationRequest(id="full", prompt=full, sampling=sampling, max_tokens=2)
        engine.submit(request, last := Recorder())
        assert last.wait().error is None
        assert len(last.tokens[0]) == 2
    finally:
        engine.close()
