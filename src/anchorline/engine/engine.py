"""The engine's face for other threads: submit, cancel, stats; and the thread itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import TypeVar

from anchorline.cache.disk import DiskStats
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.config import EngineConfig
from anchorline.disk.record import SegmentStore
from anchorline.engine.caches import OpenCache, check_cache, make_cache
from anchorline.engine.commands import Asked, Command
from anchorline.engine.loop import EngineLoop
from anchorline.engine.memory import CHECK_SECONDS, MemoryWatch, ReadMemory
from anchorline.engine.request import GenerationRequest, ReplyConsumer
from anchorline.engine.stats import EngineStats
from anchorline.engine.stream import Call, Clock, open_call
from anchorline.errors import ConfigError, EngineFailure, PromptTooLong, QueueFull, RequestError
from anchorline.llama.interface import Runtime, SamplingParams

log = logging.getLogger("anchorline.engine")

T = TypeVar("T")

RETRY_AFTER_SECONDS_MAX = 60
STATS_SECONDS = 0.5
"""While calls run, a snapshot of the counters is at most so old (plus one step)."""


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


OpenStore = Callable[[], SegmentStore | None]
"""Opens the disk tier, or says that there is none."""


@dataclass(frozen=True, slots=True)
class _Stop:
    """Ends the loop."""

    parks: bool = False
    """Whether the cache is left as it would be if all calls had ended."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The disk tier has something to tell the engine thread."""

    tell: Callable[[], None]


_ENDED = "the server is shutting down"

_Incoming = Call | Asked | _Cancel | _Told | _Stop


@dataclass(frozen=True, slots=True)
class _TakeSnapshot:
    """A command: counters and gauges, without the pins whose time is over."""

    take: Callable[[], EngineStats]

    def perform(self, loop: EngineLoop) -> EngineStats:
        if loop.cache is not None:
            loop.cache.expire_pins()
        return self.take()


class Engine:
    """One thread that owns ``runtime`` and its cache. Every public method may be called from any thread."""

    def __init__(
        self,
        runtime: Runtime,
        config: EngineConfig,
        *,
        clock: Clock,
        read_memory: ReadMemory | None = None,
        open_store: OpenStore | None = None,
        open_cache: OpenCache = make_cache,
    ) -> None:
        """With ``read_memory`` the cache also yields when the machine's memory runs short.

        With ``open_store`` what is saved outlives the process. It and ``open_cache`` are called once the self-test has
        shown what is exported. The store is closed with the engine. Raises ConfigError.
        """
        config.validate()
        self.parallel = 1 if config.exact else config.parallel
        self.context_tokens = runtime.limits.context_tokens
        needed = self.parallel + (0 if config.exact or not config.cache else config.resident_idle)
        if runtime.limits.sequences < needed:
            raise ConfigError(
                f"--parallel and --resident-idle need {needed} sequences, the runtime has {runtime.limits.sequences}"
            )
        self._runtime = runtime
        self._config = config
        self._clock = clock
        self._cache_fault = check_cache(runtime) if config.cache else None
        self._cache = open_cache(config, runtime, clock) if self._cache_fault is None else None
        self._store = open_store() if self._cache is not None and open_store is not None else None
        self.capabilities = runtime.capabilities
        self._loop = EngineLoop(runtime, config, self._cache, clock)
        self._watch = MemoryWatch(self._cache, read_memory, clock) if self._cache and read_memory else None
        self._inbox: SimpleQueue[_Incoming] = SimpleQueue()
        self._lock = threading.Lock()
        self._indexed = threading.Event()
        if self._cache is not None and self._store is not None:
            post = lambda tell: self._inbox.put(_Told(tell))  # noqa: E731
            self._cache.use_disk(self._store, post, indexed=self._indexed.set)
        else:
            self._indexed.set()
        self._open: dict[str, Call] = {}
        self._call_seconds = 1.0
        self._failure: EngineFailure | None = None
        self._broken = False
        """It ended otherwise than it was told to."""
        self._stats = self._snapshot()
        self._thread = threading.Thread(target=self._run, name="anchorline-engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the loop runs and takes requests."""
        return self._thread.is_alive() and self._failure is None

    @property
    def has_disk(self) -> bool:
        """Whether what is saved outlives the process."""
        return self._cache is not None and self._cache.disk is not None

    def start(self) -> None:
        self._thread.start()

    def prepare(self, sampling: SamplingParams) -> None:
        """Do ahead what takes long about a request with ``sampling``, on the caller's thread."""
        self._runtime.prepare_sampler(sampling)

    def submit(self, request: GenerationRequest, consumer: ReplyConsumer) -> None:
        """Queue a call; ``consumer`` hears of it on the engine thread.

        Raises RequestError, PromptTooLong, QueueFull or EngineFailure, and then never calls ``consumer``.
        """
        self._check(request)
        call = open_call(request, consumer, context_tokens=self.context_tokens, now=self._clock())
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if request.id in self._open:
                raise RequestError(f"a request with the id {request.id} is open already", field="id")
            waiting = sum(not other.request.background for other in self._open.values()) - self.parallel
            if waiting >= self._config.queue and not request.background:
                raise QueueFull(
                    waiting=max(waiting, 0), limit=self._config.queue, retry_after_seconds=self._retry_after(waiting)
                )
            self._open[request.id] = call
            self._inbox.put(call)

    def _check(self, request: GenerationRequest) -> None:
        if len(request.prompt) == 0:
            raise RequestError("the prompt is empty", field="prompt")
        if len(request.prompt) >= self.context_tokens:
            raise PromptTooLong(prompt_tokens=len(request.prompt), context_tokens=self.context_tokens)
        if not 1 <= request.choices <= self.parallel:
            raise RequestError(
                f"n must lie between 1 and {self.parallel} (--parallel), not {request.choices}", field="n"
            )
        least = 0 if request.choices == 1 else 1
        if request.max_tokens < least:
            raise RequestError(f"max_tokens must be at least {least}, not {request.max_tokens}", field="max_tokens")
        if request.background and request.max_tokens:
            raise RequestError("what is made in the background only prefills", field="background")

    def _retry_after(self, waiting: int) -> int:
        """Whole seconds after which a place should be free."""
        expected = self._call_seconds * (waiting + 1) / self.parallel
        return min(max(int(expected + 0.5), 1), RETRY_AFTER_SECONDS_MAX)

    def cancel(self, request_id: str) -> None:
        """End a call at the next step; its consumer gets Cancelled. Unknown ids are ignored."""
        self._inbox.put(_Cancel(request_id))

    def ask(self, command: Command[T]) -> Future[T]:
        """The answer to ``command``, once it was carried out between two steps. Raises EngineFailure."""
        answer: Future[T] = Future()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._inbox.put(Asked(command, answer))
        return answer

    def close(self, *, flush_seconds: float = 0.0) -> None:
        """Fail the open calls, end the thread and free the runtime. Idempotent.

        What is to be written to disk is, for as long as ``flush_seconds``.
        """
        self._end(_Stop(), flush_seconds)

    def park(self, *, flush_seconds: float) -> PrefixCache | None:
        """As ``close``; gives the cache, with all that was computed, for another engine on the same model.

        None where there is none, or the engine has failed.
        """
        sound = self.alive
        self._end(_Stop(parks=True), flush_seconds)
        if self._cache is None:
            return None
        if not sound or self._broken:
            self._cache.discard()
            return None
        self._hear_out(EngineFailure(_ENDED))  # the store has told more since the thread ended
        self._stats = self._snapshot()
        self._cache.leave_disk()
        return self._cache

    def wait_until_indexed(self, timeout_seconds: float) -> None:
        """Returns once all that was on disk at the start is known, or when the time is over."""
        self._indexed.wait(timeout_seconds)

    def _end(self, stop: _Stop, flush_seconds: float) -> None:
        if self._thread.is_alive():
            self._inbox.put(stop)
            self._thread.join()
        if self._store is not None:
            self._store.close(flush_seconds)
        self._runtime.close()

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        error = EngineFailure(_ENDED)
        try:
            self._serve()
        except Exception as failure:  # the loop's own edge: whatever it is, nobody may wait for ever
            log.exception("the engine failed")
            self._broken = True
            error = EngineFailure(f"the engine failed: {failure}")
        with self._lock:
            self._failure = error
            open_calls = list(self._open.values())
            self._open.clear()
        for call in open_calls:
            call.close()
            call.fail(error, self._clock())
        self._hear_out(error)

    def _hear_out(self, error: EngineFailure) -> None:
        """Take what is left in the inbox, once no more calls come in."""
        while not self._inbox.empty():
            left = self._inbox.get()
            if isinstance(left, Asked):
                left.fail(error)
            elif isinstance(left, _Told) and not self._broken:
                left.tell()

    def _serve(self) -> None:
        published = self._clock()
        while True:
            came = False
            for command in self._commands():
                came = True
                if isinstance(command, _Stop):
                    self._write_last(command)
                    return
                self._handle(command)
            if self._watch is not None:
                self._watch.check()
            ended = self._loop.step()
            for call in ended:
                self._close_call(call)
            now = self._clock()
            if came or ended or not self._loop.has_work or now - published >= STATS_SECONDS:
                self._stats, published = self._snapshot(), now

    def _write_last(self, stop: _Stop) -> None:
        """Keep what is computed as far as ``stop`` asks for it."""
        if stop.parks:
            for call in list(self._open.values()):
                self._loop.cancel(call, EngineFailure(_ENDED))
                self._close_call(call)
            self._loop.finish_saves()
        self._loop.write_last()

    def _commands(self) -> Iterator[_Incoming]:
        """What came in; waits for it when there is nothing to do but to look at memory and clock now and then.

        What is not taken stays in the inbox.
        """
        waits = not self._loop.has_work
        looks = self._watch is not None or bool(self._loop.waiting)
        while True:
            try:
                yield self._inbox.get(waits, self._rest_seconds() if looks else None)
            except Empty:
                return
            waits = False

    def _rest_seconds(self) -> float:
        """How long to wait for commands before time itself has to be looked at."""
        return min(CHECK_SECONDS, max(0.0, self._loop.due_seconds - self._clock()))

    def _handle(self, command: Call | Asked | _Cancel | _Told) -> None:
        if isinstance(command, Call):
            for ended in self._loop.open(command):
                self._close_call(ended)
            return
        if isinstance(command, Asked):
            command.perform(self._loop)
            return
        if isinstance(command, _Told):
            command.tell()
            return
        call = self._open.get(command.request_id)
        if call is not None:
            self._loop.cancel(call)
            self._close_call(call)

    def _close_call(self, call: Call) -> None:
        if call.admitted_seconds is not None and not call.request.background:
            self._call_seconds += 0.2 * (self._clock() - call.admitted_seconds - self._call_seconds)
        with self._lock:
            self._open.pop(call.request.id, None)

    # -- stats --------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Counters and gauges as of the engine's last rest, or of less than a second ago."""
        return replace(self._stats, alive=self.alive)

    def fresh_stats(self) -> Future[EngineStats]:
        """Counters and gauges as of now, once the step that runs has ended. Raises EngineFailure."""
        return self.ask(_TakeSnapshot(self._snapshot))

    def _snapshot(self) -> EngineStats:
        """Taken on the engine thread, which owns everything that is read here."""
        loop, cache = self._loop, self._cache
        resident = list(loop.pool)
        snapshot = EngineStats(
            alive=True,
            running=len(loop.running),
            waiting=len(loop.waiting),
            held=sum(stream.hold is not None for stream in loop.waiting),
            queue_limit=self._config.queue,
            resident_sequences=len(resident),
            resident_tokens=sum(live.length for live in resident),
            context_tokens=self.context_tokens,
            decode_calls=loop.decode_calls,
            decoded_tokens=loop.decoded_tokens,
            preemptions=loop.preemptions,
            dropped_idle=loop.idle.dropped.copy(),
            shortened_idle=loop.idle.shortened,
            awaited_returns=loop.awaited_returns,
            cache_fault=self._cache_fault,
            seals=replace(loop.seals.counters),
        )
        if cache is None:
            return snapshot
        return replace(
            snapshot,
            pending_saves=loop.pending_saves,
            host_budget_bytes=cache.arena.budget_bytes,
            host_limit_bytes=cache.arena.limit_bytes,
            host_used_bytes=cache.arena.used_bytes,
            eviction=self._config.eviction,
            host_segments=len(cache.tree.kept),
            host_tokens_by_class=cache.tree.tokens_by_class(),
            host_states=cache.tree.states,
            host_state_bytes=cache.tree.state_bytes,
            pin_budget_bytes=cache.pins.limit_bytes,
            pinned_bytes=cache.pins.pinned_bytes,
            parked_pinned_bytes=cache.pins.others.pinned_bytes,
            pins=len(cache.pins),
            pins_ended=cache.pins.ended.copy(),
            parked_pins_ended=cache.pins.others.ended.copy(),
            pins_refused=cache.pins.refused.copy(),
            cache=cache.counters.copy(),
            disk=DiskStats() if cache.disk is None else cache.disk.stats(),
        )
