"""An engine loop over the fake runtime, driven step by step on the test's own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from math import isfinite

from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.config import EngineConfig
from anchorline.engine.caches import make_cache
from anchorline.engine.loop import EngineLoop
from anchorline.engine.request import CallReport, GenerationRequest, TokenForcer
from anchorline.engine.speeds import SpeedMeter
from anchorline.engine.stream import Call, open_call
from anchorline.llama.interface import SamplingParams, TokenConstraint
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, tokens_of
from tests.support.memory_store import DiskFaults, Files, MemoryStore


class Ticker:
    """A clock that advances by ``step_seconds`` per reading."""

    def __init__(self, step_seconds: float) -> None:
        self.seconds = 0.0
        self._step_seconds = step_seconds

    def __call__(self) -> float:
        self.seconds += self._step_seconds
        return self.seconds


def make_prompt(ids: list[int], *, head: int | None = None, ends: tuple[int, ...] = (), pin: bool = False) -> Prompt:
    cuts = [Cut(head, CutKind.HEAD)] if head else []
    cuts += [Cut(end, CutKind.MESSAGE, index) for index, end in enumerate(ends)]
    return Prompt(
        tokens=tokens_of(ids),
        cuts=tuple(cuts),
        tool_fingerprint="tools" if pin else None,
        pin_head=pin,
        message_starts=(0, *ends),
    )


def make_cells_dear(meter: SpeedMeter, *, seconds_per_token_cell: float = 1e-5) -> None:
    """Let ``meter`` have measured what each cell that attention runs over costs."""
    for cells in range(0, 10_000, 1000):
        meter.prefilled(512, 512 * (1e-4 + seconds_per_token_cell * cells), cells=cells)


class Harness:
    """A loop with its runtime and cache; ``ask`` runs one call to its end."""

    def __init__(
        self,
        runtime: FakeRuntime,
        *,
        cache_bytes: int | None = 1 << 20,
        parallel: int = 3,
        resident_idle: int = 1,
        exact: bool = False,
        checkpoint_every: int = 0,
        eviction: str = "cost-aware",
        max_passes: int = 16,
        step_seconds: float = 0.001,
        files: Files | None = None,
        disk_faults: DiskFaults | None = None,
    ) -> None:
        """``step_seconds`` is what everything seems to take, a decode call for one; ``files`` is the disk, if any."""
        self.runtime = runtime
        self.clock = Ticker(step_seconds)
        self.config = EngineConfig(
            parallel=parallel,
            resident_idle=resident_idle,
            exact=exact,
            checkpoint_every=checkpoint_every,
            eviction=eviction,
            max_passes=max_passes,
            cache=cache_bytes is not None,
            cache_ram_bytes=cache_bytes or 0,
        )
        self.cache = make_cache(self.config, runtime, self.clock)
        self.loop = EngineLoop(runtime, self.config, self.cache, self.clock)
        self.told: deque[Callable[[], None]] = deque()
        """What the store had to tell and the loop has not heard yet."""
        self.store: MemoryStore | None = None
        if files is not None and self.cache is not None:
            self.store = MemoryStore(files, faults=disk_faults)
            self.cache.use_disk(self.store, self.told.append)
        self._ids = count()

    def open(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 4,
        choices: int = 1,
        seed: int | None = None,
        use_cache: bool = True,
        background: bool = False,
        forcer: TokenForcer | None = None,
        constraint: TokenConstraint | None = None,
        recorder: Recorder | None = None,
    ) -> tuple[Call, Recorder]:
        request = GenerationRequest(
            id=f"call-{next(self._ids)}",
            prompt=prompt,
            sampling=SamplingParams(seed=seed),
            max_tokens=max_tokens,
            choices=choices,
            use_cache=use_cache,
            background=background,
            forcer=forcer,
            constraint=constraint,
            received_seconds=self.clock(),
        )
        recorder = recorder or Recorder()
        call = open_call(request, recorder, context_tokens=self.runtime.limits.context_tokens)
        self.loop.open(call)
        return call, recorder

    def run(self) -> None:
        """Step until nothing is left to do."""
        for _ in range(100_000):
            if not self.loop.has_work and not self.hear():
                if not isfinite(self.loop.due_seconds):
                    assert not self.loop.waiting, "a stream waits though nothing runs"
                    return
                self.clock.seconds = max(self.clock.seconds, self.loop.due_seconds)
            self.loop.step()
        raise AssertionError("the loop does not come to rest")

    def hear(self) -> bool:
        """Let the store do what it was asked for, and the loop hear of it; whether there was anything."""
        worked = self.store is not None and self.store.work()
        while self.told:
            self.told.popleft()()
            worked = True
        return worked

    def ask(self, prompt: Prompt, *, max_tokens: int = 4, choices: int = 1, use_cache: bool = True) -> Recorder:
        _, recorder = self.open(prompt, max_tokens=max_tokens, choices=choices, use_cache=use_cache)
        self.run()
        assert recorder.has_ended
        return recorder

    def seal(self, ids: list[int], *, head: int | None = None) -> tuple[Call, Recorder]:
        """Open a background call for the guess that a prompt will begin with ``ids``."""
        guess = make_prompt(ids, head=head)
        return self.open(guess.beginning(len(ids)), max_tokens=0, background=True)

    def report(self, prompt: Prompt, *, max_tokens: int = 4) -> CallReport:
        report = self.ask(prompt, max_tokens=max_tokens).report
        assert report is not None
        assert report.restored_tokens + report.prefilled_tokens == report.prompt_tokens
        return report
