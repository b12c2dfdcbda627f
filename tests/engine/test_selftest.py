"""The start-up self-test: passes where restores are right, and turns the cache off where they are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from anchorline.config import EngineConfig, ModelConfig
from anchorline.engine.engine import Engine
from anchorline.engine.request import GenerationRequest
from anchorline.engine.selftest import self_test
from anchorline.llama.interface import MemoryKind, SamplingParams
from anchorline.llama.model import load_model
from anchorline.llama.testarchitectures import ARCHITECTURES
from tests.engine.harness import make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import CELL_BYTES, FakeRuntime, Faults, expected_reply
from tests.support.runtimes import make_runtime

kinds = pytest.mark.parametrize("kind", [MemoryKind.PLAIN, MemoryKind.HYBRID, MemoryKind.RECURRENT])


class SilentlyWrong(FakeRuntime):
    """Restores cells that are not those that were saved, and says nothing."""

    def import_rows(self, sequence: int, rows: memoryview, start: int, end: int) -> bool:
        changed = bytearray(rows)
        for at in range(0, len(changed), CELL_BYTES):
            changed[at + 8] ^= 1
        return super().import_rows(sequence, memoryview(changed), start, end)


@kinds
def test_a_right_runtime_passes_and_is_left_empty(kind: MemoryKind) -> None:
    runtime = FakeRuntime(kind=kind, batch_tokens=64)
    assert self_test(runtime) is None
    assert runtime.length(0) == runtime.used_cells == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SilentlyWrong(batch_tokens=64), "changes log-probabilities"),
        (lambda: SilentlyWrong(batch_tokens=64, kind=MemoryKind.HYBRID), "changes log-probabilities"),
        (lambda: FakeRuntime(batch_tokens=64, faults=Faults(import_=1.0)), "were refused"),
        (lambda: FakeRuntime(batch_tokens=64, faults=Faults(export=1.0)), "injected"),
    ],
)
def test_where_segments_fail_whole_sequences_are_kept(
    make: Callable[[], FakeRuntime], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = make()
    with caplog.at_level(logging.ERROR):
        engine = Engine(runtime, EngineConfig(parallel=2, resident_idle=0), clock=time.monotonic)
    assert words in caplog.text
    assert "whole sequences are kept" in caplog.text
    assert engine.stats().cache_fault is None
    assert runtime.whole
    engine.start()
    try:
        prompt = make_prompt(list(range(1, 40)), head=30)
        for name in ("first", "again"):
            request = GenerationRequest(id=name, prompt=prompt, sampling=SamplingParams(), max_tokens=4)
            engine.submit(request, recorder := Recorder())
            recorder.wait()
            expected = expected_reply(prompt.tokens.tolist(), 4, kind=runtime.capabilities.kind)
            assert recorder.tokens.get(0, []) == expected
        assert recorder.report is not None
        assert recorder.report.restored_tokens == 30
    finally:
        engine.close()


def test_where_nothing_restores_the_cache_is_off_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(import_=1.0, state=1.0)
    with caplog.at_level(logging.ERROR):
        engine = Engine(
            FakeRuntime(batch_tokens=64, faults=faults),
            EngineConfig(parallel=2, resident_idle=1),
            clock=time.monotonic,
        )
    fault = engine.stats().cache_fault
    assert fault is not None
    assert "injected: state export" in fault
    assert "the cache is off" in caplog.text
    assert engine.stats().host_budget_bytes == 0


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35", "mamba2"])
def test_whole_sequences_restore_every_kind(arch: str) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}"))
    runtime = make_runtime(model)
    try:
        runtime.keep_whole_sequences()
        assert self_test(runtime) is None
        assert not runtime.capabilities.has_rows
    finally:
        runtime.close()
        model.close()


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_every_architecture_passes(arch: str) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}"))
    runtime = make_runtime(model)
    try:
        assert self_test(runtime) is None
    finally:
        runtime.close()
        model.close()
