"""The start-up self-test: passes where restores are right, and turns the cache off where they are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from anchorline.config import EngineConfig, ModelConfig
from anchorline.engine.engine import Engine
from anchorline.engine.selftest import self_test
from anchorline.llama.interface import MemoryKind
from anchorline.llama.model import load_model
from anchorline.llama.testarchitectures import ARCHITECTURES
from tests.support.fake_runtime import CELL_BYTES, FakeRuntime, Faults
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
        (lambda: FakeRuntime(batch_tokens=64, faults=Faults(state=1.0), kind=MemoryKind.RECURRENT), "injected"),
    ],
)
def test_a_wrong_one_runs_without_its_cache_and_says_so(
    make: Callable[[], FakeRuntime], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        engine = Engine(make(), EngineConfig(parallel=2, resident_idle=1), clock=time.monotonic)
    fault = engine.stats().cache_fault
    assert fault is not None
    assert words in fault
    assert words in caplog.text
    assert engine.stats().host_budget_bytes == 0


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_every_architecture_passes(arch: str) -> None:
    model = load_model(ModelConfig(model=f"test:{arch}"))
    runtime = make_runtime(model)
    try:
        assert self_test(runtime) is None
    finally:
        runtime.close()
        model.close()
