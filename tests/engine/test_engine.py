"""The engine's face for other threads, on its real thread over the fake runtime."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from anchorline.config import EngineConfig
from anchorline.engine.caches import make_cache
from anchorline.engine.engine import Engine
from anchorline.engine.request import CallReport, GenerationRequest, SampledToken
from anchorline.errors import (
    Cancelled,
    ConfigError,
    EngineFailure,
    PromptTooLong,
    QueueFull,
    RequestError,
)
from anchorline.llama.interface import DecodeStatus, SamplingParams
from tests.engine.harness import make_prompt
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, expected_reply

IDS = list(range(1, 20))


class GatedRuntime(FakeRuntime):
    """Decodes only while its gate is open, so that a test can look at a running engine."""

    def __init__(self, *, sequences: int = 5, context_tokens: int = 400) -> None:
        super().__init__(sequences=sequences, context_tokens=context_tokens)
        self.gate = threading.Event()
        self.entered = threading.Event()

    def decode(self) -> DecodeStatus:
        self.entered.set()
        assert self.gate.wait(timeout=60)
        return super().decode()


class BrokenRuntime(FakeRuntime):
    def decode(self) -> DecodeStatus:
        raise RuntimeError("something nobody foresaw")


@contextmanager
def running(runtime: FakeRuntime, config: EngineConfig | None = None) -> Iterator[Engine]:
    engine = Engine(runtime, config or EngineConfig(parallel=2, resident_idle=1), clock=time.monotonic)
    engine.start()
    try:
        yield engine
    finally:
        if isinstance(runtime, GatedRuntime):
            runtime.gate.set()
        engine.close()


def request(name: str, ids: list[int] | None = None, *, max_tokens: int = 4, choices: int = 1) -> GenerationRequest:
    return GenerationRequest(
        id=name,
        prompt=make_prompt(IDS if ids is None else ids),
        sampling=SamplingParams(),
        max_tokens=max_tokens,
        choices=choices,
        received_seconds=time.monotonic(),
    )


def test_answers_and_reports() -> None:
    with running(FakeRuntime()) as engine:
        recorder = Recorder()
        engine.submit(request("a"), recorder)
        recorder.wait()
        assert recorder.tokens[0] == expected_reply(IDS, 4)
        report = recorder.report
        assert report is not None
        assert report.ttft_seconds is not None
        assert min(report.queue_seconds, report.prefill_seconds, report.decode_seconds) >= 0


def test_admission_is_told_once_and_before_the_prefill() -> None:
    runtime = GatedRuntime()
    told: list[CallReport] = []
    with running(runtime) as engine:
        runtime.gate.set()
        first = Recorder()
        engine.submit(request("a"), first)
        first.wait()
        runtime.gate.clear()
        runtime.entered.clear()
        second = Recorder()
        engine.submit(replace(request("b", [*IDS, 30], choices=2), on_admitted=told.append), second)
        assert runtime.entered.wait(timeout=60)
        (report,) = told
        assert (report.id, report.prompt_tokens, report.generated_tokens) == ("b", len(IDS) + 1, 0)
        runtime.gate.set()
        second.wait()
        assert second.report is not None
        assert len(told) == 1
        assert report.restored_tokens == second.report.restored_tokens == len(IDS)


def test_many_threads_submit_at_once_and_each_gets_its_own_answer() -> None:
    prompts = [[*IDS[: n % 7 + 1], n % 40] for n in range(40)]
    recorders = [Recorder() for _ in prompts]
    with running(FakeRuntime()) as engine:

        def ask(first: int) -> None:
            for index in range(first, len(prompts), 4):
                engine.submit(request(str(index), prompts[index], max_tokens=6), recorders[index])

        threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for ids, recorder in zip(prompts, recorders, strict=True):
            assert recorder.wait().tokens.get(0, []) == expected_reply(ids, 6)


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    runtime = GatedRuntime()
    with running(runtime, EngineConfig(parallel=1, queue=2, resident_idle=0)) as engine:
        recorders = [Recorder() for _ in range(3)]
        for index, recorder in enumerate(recorders):
            engine.submit(request(str(index)), recorder)
        with pytest.raises(QueueFull) as refused:
            engine.submit(request("one too many"), Recorder())
        assert 1 <= refused.value.retry_after_seconds <= 60
        runtime.gate.set()
        for recorder in recorders:
            assert recorder.wait().error is None
        engine.submit(request("there is room again"), last := Recorder())
        assert last.wait().error is None


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (request("a", []), RequestError, "empty"),
        (request("a", [1] * 400), PromptTooLong, "400 tokens long, but the context holds 400"),
        (request("a", choices=3), RequestError, "--parallel"),
        (request("a", max_tokens=-1), RequestError, "max_tokens"),
        (request("a", max_tokens=0, choices=2), RequestError, "max_tokens"),
    ],
)
def test_unusable_requests_are_refused_at_once(bad: GenerationRequest, error: type[Exception], words: str) -> None:
    with running(FakeRuntime()) as engine, pytest.raises(error, match=words):
        engine.submit(bad, Recorder())


def test_an_open_id_cannot_be_used_again() -> None:
    runtime = GatedRuntime()
    with running(runtime) as engine:
        engine.submit(request("same"), first := Recorder())
        with pytest.raises(RequestError, match="same"):
            engine.submit(request("same"), Recorder())
        runtime.gate.set()
        assert first.wait().error is None


def test_cancel_ends_a_running_call_and_leaves_the_others() -> None:
    runtime = GatedRuntime()
    with running(runtime) as engine:
        engine.submit(request("gone", max_tokens=300), gone := Recorder())
        engine.submit(request("stays", [2, 3, 4]), stays := Recorder())
        assert runtime.entered.wait(timeout=60)
        engine.cancel("gone")
        engine.cancel("never heard of")
        runtime.gate.set()
        assert isinstance(gone.wait().error, Cancelled)
        assert stays.wait().tokens.get(0, []) == expected_reply([2, 3, 4], 4)


def test_a_dead_engine_fails_every_call_at_once_and_refuses_new_ones() -> None:
    with running(BrokenRuntime()) as engine:
        recorders = [Recorder() for _ in range(5)]
        refused = 0
        for index, recorder in enumerate(recorders):
            try:
                engine.submit(request(str(index)), recorder)
            except EngineFailure:
                refused += 1
                continue
            assert isinstance(recorder.wait().error, EngineFailure)
        assert refused < len(recorders)
        with pytest.raises(EngineFailure, match="nobody foresaw"):
            engine.submit(request("late"), Recorder())
        assert not engine.alive
        assert not engine.stats().alive


def test_close_fails_open_calls_and_frees_the_runtime() -> None:
    runtime = GatedRuntime()
    engine = Engine(runtime, EngineConfig(parallel=1, resident_idle=0), clock=time.monotonic)
    engine.start()
    recorders = [Recorder() for _ in range(3)]
    for index, recorder in enumerate(recorders):
        engine.submit(request(str(index), max_tokens=300), recorder)
    assert runtime.entered.wait(timeout=60)
    closer = threading.Thread(target=engine.close)
    closer.start()
    runtime.gate.set()
    closer.join(timeout=60)
    assert runtime.closed
    for recorder in recorders:
        assert recorder.wait().error is None or isinstance(recorder.error, EngineFailure)
    engine.close()


def test_stats_count_what_happened() -> None:
    with running(FakeRuntime(), EngineConfig(parallel=2, resident_idle=1)) as engine:
        engine.submit(request("a"), recorder := Recorder())
        recorder.wait()
        engine.submit(request("b", [*IDS, 3, 4]), recorder := Recorder())
        recorder.wait()
        stats = engine.stats()
        assert stats.alive
        assert stats.decode_calls > 0
        assert stats.resident_tokens >= len(IDS)
        assert stats.host_budget_bytes == 1 << 30


def test_too_few_sequences_are_refused() -> None:
    with pytest.raises(ConfigError, match="--parallel"):
        Engine(FakeRuntime(sequences=2), EngineConfig(parallel=2, resident_idle=1), clock=time.monotonic)


def test_what_a_fork_copies_through_comes_out_of_the_budget() -> None:
    runtime = FakeRuntime()
    runtime.limits = replace(runtime.limits, fork_bytes=1 << 20)
    cache = make_cache(EngineConfig(cache_ram_bytes=5 << 20), runtime, time.monotonic)
    assert cache is not None
    assert cache.arena.budget_bytes == 4 << 20
    runtime.limits = replace(runtime.limits, fork_bytes=9 << 20)
    cache = make_cache(EngineConfig(cache_ram_bytes=5 << 20), runtime, time.monotonic)
    assert cache is not None
    assert cache.arena.budget_bytes < 100


def test_counters_move_while_a_call_runs() -> None:
    """With a clock that advances a second per reading every step is due for a snapshot."""
    seconds = itertools.count()
    runtime = FakeRuntime()
    engine = Engine(runtime, EngineConfig(parallel=1, resident_idle=0), clock=lambda: float(next(seconds)))

    class Watcher(Recorder):
        def on_token(self, choice: int, token: SampledToken) -> bool:
            decode_calls.append(engine.stats().decode_calls)
            return super().on_token(choice, token)

    decode_calls: list[int] = []
    engine.start()
    try:
        ids = next([first, *IDS] for first in range(40) if len(expected_reply([first, *IDS], 20)) == 20)
        engine.submit(request("long", ids, max_tokens=20), watcher := Watcher())
        watcher.wait()
    finally:
        engine.close()
    assert len(set(decode_calls)) > 10
