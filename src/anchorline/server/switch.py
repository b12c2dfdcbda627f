"""Several models in one server, of which one is loaded at a time: who may use it when, loading and unloading.

    request ── acquire ──▸ waits for its turn (``model_order``) ──▸ lease ──▸ the model's endpoints ──▸ release
                                        │
                  nothing uses the loaded model: unload ──▸ load     on a thread of its own

All of it happens on one event loop, but for what takes long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol

from starlette.types import ASGIApp

from anchorline.api.models import Served
from anchorline.engine.stats import EngineStats
from anchorline.errors import AnchorlineError, EngineFailure, ModelNotFound, QueueFull
from anchorline.metrics.metrics import Metrics
from anchorline.server.app import ModelApp
from anchorline.server.model_order import Waiting, due, passes, starting
from anchorline.server.state import ServerState
from anchorline.server.workers import Workers

log = logging.getLogger("anchorline.models")

FAILED_SECONDS = 30.0
"""How long a model that could not be loaded is not tried again: each try would cost the others a switch."""
RETRY_SECONDS_MAX = 60


class HostedModel(Protocol):
    """A model that is loaded, with all that serves it."""

    @property
    def state(self) -> ServerState: ...

    def stop(self) -> None:
        """End its engine; what it kept stays. Takes long."""

    def free(self) -> bool:
        """Free its weights, once what the engine told at its end was heard; False while a thread uses them.

        Takes long.
        """


class ModelSource(Protocol):
    """The models that can be loaded. Its methods take long, and are called on one thread at a time."""

    @property
    def names(self) -> Sequence[str]: ...

    def stats(self) -> EngineStats:
        """The gauges while none is loaded. Does not take long; for any thread."""

    def check(self, name: str) -> None:
        """Raises AnchorlineError when it is plain that it cannot be loaded."""

    def load(self, name: str) -> HostedModel:
        """Raises AnchorlineError; nothing else may be loaded."""


class ModelStatus(StrEnum):
    LOADED = "loaded"
    LOADING = "loading"
    UNLOADED = "unloaded"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use a loaded model, until ``release``, which must be called once."""

    app: ASGIApp
    release: Callable[[], None]
    waited_seconds: float
    """Until it was given; 0 where that was at once."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    name: str
    hosted: HostedModel
    app: ModelApp

    @property
    def is_usable(self) -> bool:
        return self.hosted.state.engine.alive


@dataclass(slots=True, eq=False)
class _Place:
    """In the queue."""

    model: str
    turn: asyncio.Future[Lease]
    since_seconds: float | None = None
    """None while it is not known yet whether it has to wait."""
    passed: int = 0


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    until_seconds: float


@dataclass(slots=True)
class _Known:
    """What is remembered of a model while it is not loaded."""

    served: Served | None = None
    failure: _Failure | None = None


@dataclass(slots=True, kw_only=True)
class ModelSwitch:
    """Which model is loaded, and who waits for which. Lives on the event loop, but for ``stats`` and ``close``."""

    source: ModelSource
    metrics: Metrics
    queue: int
    """How many may wait, those for all models together; one more is answered with 429."""
    max_passes: int
    clock: Callable[[], float]
    """Monotonic."""
    _known: dict[str, _Known] = field(init=False)
    _workers: Workers = field(init=False, default_factory=lambda: Workers(threads=1, waiting=1))
    _waiting: list[_Place] = field(init=False, default_factory=list)
    _loaded: _Loaded | None = field(init=False, default=None)
    _stopped: list[_Loaded] = field(init=False, default_factory=list)
    """What is still to be freed."""
    _leases: int = field(init=False, default=0)
    _switching: asyncio.Task[None] | None = field(init=False, default=None)
    _loading: str | None = field(init=False, default=None)
    """The model that a switch is under way to."""
    _reads_weights: bool = field(init=False, default=False)
    """Whether that is so far that nothing else is loaded any more."""
    _waited_seconds: float = field(init=False, default=1.0)
    """Of the latest one who got a turn after waiting."""

    def __post_init__(self) -> None:
        self._known = {name: _Known() for name in self.source.names}
        for name in self._known:
            self.metrics.model_loaded.labels(name).set(0)

    # -- what there is ------------------------------------------------------------------------

    def name_of(self, asked: str | None) -> str:
        """The model that is meant: where none is named the loaded one, that which is being loaded, else the first.

        Raises ModelNotFound.
        """
        if asked is None:
            loaded = None if self._loaded is None else self._loaded.name
            return loaded or self._loading or self.source.names[0]
        if asked not in self._known:
            raise ModelNotFound(asked, known=self.source.names)
        return asked

    def status(self, name: str) -> ModelStatus:
        if self._loading == name:
            return ModelStatus.LOADING
        return ModelStatus.LOADED if self._loaded is not None and self._loaded.name == name else ModelStatus.UNLOADED

    @property
    def served(self) -> Mapping[str, Served | None]:
        """What is known of each model: nothing before it was loaded for the first time."""
        return {name: known.served for name, known in self._known.items()}

    @property
    def loaded(self) -> ServerState | None:
        return None if self._loaded is None else self._loaded.hosted.state

    @property
    def waiting(self) -> int:
        """Requests that wait for a model."""
        return len(self._waiting)

    def stats(self) -> EngineStats:
        """The gauges of the loaded model, or of none; for any thread."""
        loaded = self._loaded
        return self.source.stats() if loaded is None else loaded.hosted.state.engine.stats()

    # -- turns --------------------------------------------------------------------------------

    async def acquire(self, name: str) -> Lease:
        """The right to use the model, once it is its turn; cancelling this gives the place up.

        Raises QueueFull, and EngineFailure with the reason when it cannot be loaded.
        """
        self._check_failure(name)
        if self._waiting and len(self._waiting) >= self.queue:
            retry = min(max(round(self._waited_seconds), 1), RETRY_SECONDS_MAX)
            raise QueueFull(waiting=len(self._waiting), limit=self.queue, retry_after_seconds=retry)
        place = _Place(name, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        self._advance()
        place.since_seconds = self.clock()
        try:
            return await place.turn
        except asyncio.CancelledError:
            if place.turn.cancelled():
                self._forget_gone()
                self._advance()
            elif place.turn.exception() is None:
                place.turn.result().release()  # it came too late
            raise

    def _check_failure(self, name: str) -> None:
        failure = self._known[name].failure
        if failure is not None and self.clock() < failure.until_seconds:
            raise EngineFailure(failure.message)

    def _advance(self) -> None:
        """Let those start whose turn it is, and switch when that is due and possible."""
        if self._switching is not None:
            return
        self._forget_gone()
        loaded = self._loaded.name if self._loaded is not None and self._loaded.is_usable else None
        self._start(loaded)
        if not self._leases and (wanted := due(self._order(), loaded)) is not None:
            self._switching = asyncio.create_task(self._switch(wanted))

    def _forget_gone(self) -> None:
        """A task that is cancelled gives its place up a moment before it says so."""
        self._waiting = [place for place in self._waiting if not place.turn.done()]

    def _order(self) -> list[Waiting]:
        return [Waiting(model=place.model, passed=place.passed) for place in self._waiting]

    def _start(self, loaded: str | None) -> None:
        starts = starting(self._order(), loaded, max_passes=self.max_passes)
        if not starts:
            return
        assert self._loaded is not None, "only who waits for the loaded model starts"
        for index, place in enumerate(self._waiting):
            if index in starts:
                self._leases += 1
                waited_seconds = 0.0
                if place.since_seconds is not None:
                    waited_seconds = self._waited_seconds = self.clock() - place.since_seconds
                place.turn.set_result(Lease(self._loaded.app, self._release, waited_seconds))
            else:
                place.passed += passes(starts, index)
        self._waiting = [place for index, place in enumerate(self._waiting) if index not in starts]

    def _release(self) -> None:
        self._leases -= 1
        self._advance()

    # -- switching ----------------------------------------------------------------------------

    async def _switch(self, name: str) -> None:
        """Put ``name`` in the place of what is loaded; whoever waits for it hears why that fails."""
        self._loading = name
        try:
            await self._workers.run(lambda: self.source.check(name))
            await self._unload()
            started = self.clock()
            self._reads_weights = True
            hosted = await self._workers.run(lambda: self.source.load(name))
            self._loaded = _Loaded(name, hosted, ModelApp(hosted.state))
            self._known[name] = _Known(hosted.state.served)
            seconds = self.clock() - started
            self.metrics.count_model_load(name, seconds=seconds)
            log.info("%s is loaded, after %.1f s", name, seconds)
        except AnchorlineError as error:
            self._fail(name, str(error))
        except asyncio.CancelledError:  # the event loop ends, and with it whoever waits
            raise
        except Exception as error:
            log.exception("loading %s failed", name)
            self._fail(name, repr(error))
        self._loading = self._switching = None
        self._reads_weights = False
        self._advance()

    def _fail(self, name: str, reason: str) -> None:
        log.error("%s cannot be loaded: %s", name, reason)
        message = f"the model {name!r} cannot be loaded: {reason}"
        self._known[name].failure = _Failure(message, self.clock() + FAILED_SECONDS)
        self._forget_gone()
        failed = [place for place in self._waiting if place.model == name]
        self._waiting = [place for place in self._waiting if place.model != name]
        for place in failed:
            place.turn.set_exception(EngineFailure(message))

    async def _unload(self) -> None:
        loaded = self._loaded
        if loaded is not None:
            with _going_on("ending what goes on beside the calls of", loaded.name):
                await loaded.app.close()
            await self._workers.run(lambda: self._stop(loaded))
            # What the engine told the event loop at its end has been heard by now: nothing asks its tokenizer any more.
            self._stopped.append(loaded)
        for stopped in list(self._stopped):
            if await self._workers.run(partial(self._free, stopped)):
                self._stopped.remove(stopped)
            else:
                log.error("%s stays in memory until the next switch: a request is still being rendered", stopped.name)

    def _stop(self, loaded: _Loaded) -> None:
        """Called once for each, by the event loop's thread or by the one that loads: whoever comes to it."""
        self._loaded = None
        self.metrics.model_loaded.labels(loaded.name).set(0)
        with _going_on("ending", loaded.name):
            loaded.hosted.stop()

    def _free(self, stopped: _Loaded) -> bool:
        """False while a thread uses it; what could not be freed is not tried again."""
        with _going_on("freeing", stopped.name):
            if not stopped.hosted.free():
                return False
            log.info("%s is unloaded", stopped.name)
        return True

    def close(self, *, timeout_seconds: float) -> None:
        """Unload what is loaded, once the event loop has ended; what is being loaded then is left so.

        What is being unloaded has ``timeout_seconds`` for what it writes.
        """
        if self._reads_weights:
            return
        if self._workers.close(timeout_seconds=timeout_seconds) and (loaded := self._loaded) is not None:
            self._stop(loaded)
            self._free(loaded)


@contextmanager
def _going_on(doing: str, name: str) -> Iterator[None]:
    """What goes wrong inside is logged, and costs no other model anything."""
    try:
        yield
    except Exception:
        log.exception("%s %s failed", doing, name)
