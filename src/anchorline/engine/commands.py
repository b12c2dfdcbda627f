"""What other threads ask of the cache: commands that go through the engine's inbox and are answered by a future.

The engine thread carries them out between two steps, so nothing of the cache is ever read or changed elsewhere.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from anchorline.cache.pinning import AnchorOrder, PinInfo
from anchorline.cache.pins import Pin
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.engine.loop import EngineLoop
from anchorline.engine.request import CallReport, FinishReason, GenerationRequest, SampledToken
from anchorline.engine.stream import open_call
from anchorline.errors import AnchorlineError, Conflict, NotFound

T_co = TypeVar("T_co", covariant=True)


class Command(Protocol[T_co]):
    """One thing to do on the engine thread."""

    def perform(self, loop: EngineLoop) -> T_co:
        """Do it. An AnchorlineError is given to whoever asked; any other exception ends the engine."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A command in the inbox, and where its answer goes."""

    command: Command[Any]
    answer: Future[Any]

    def perform(self, loop: EngineLoop) -> None:
        """Carry the command out and answer, unless nobody waits any more."""
        if not self.answer.set_running_or_notify_cancel():
            return
        try:
            self.answer.set_result(self.command.perform(loop))
        except AnchorlineError as error:
            self.answer.set_exception(error)
        except Exception as error:
            self.answer.set_exception(error)
            raise

    def fail(self, error: AnchorlineError) -> None:
        """Answer with an error: the engine has ended."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinListing:
    """A tenant's pins, least recently used first, and what all pins hold."""

    pins: tuple[PinInfo, ...] = ()
    pinned_bytes: int = 0
    parked_bytes: int = 0
    """What those of models hold that are not loaded."""
    budget_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPins:
    tenant: str

    def perform(self, loop: EngineLoop) -> PinListing:
        """Empty where the cache is off."""
        if loop.cache is None:
            return PinListing()
        loop.cache.expire_pins()
        pins, pinning = loop.cache.pins, loop.cache.pinning
        return PinListing(
            pins=tuple(pinning.info(pin) for pin in pins.of(self.tenant)),
            pinned_bytes=pins.pinned_bytes,
            parked_bytes=pins.others.pinned_bytes,
            budget_bytes=pins.limit_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PinAnchor:
    """Pin an anchor whose rows are kept; ``prefilled`` says that they were made just now."""

    order: AnchorOrder
    prefilled: bool

    def perform(self, loop: EngineLoop) -> PinInfo | None:
        """The pin; None when its rows are not there yet. Raises Conflict when there is no room for it."""
        cache = _cache(loop)
        loop.finish_saves()
        made = cache.pinning.pin_anchor(self.order)
        if made is None and self.prefilled:
            raise cache.pinning.not_kept(self.order)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """How long a pin may stay unused; None: until it is removed."""

    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePin:
    """Give a pin another name or lifetime (None: leave it), and make it an explicit one."""

    tenant: str
    id: str
    name: str | None
    lifetime: Lifetime | None

    def perform(self, loop: EngineLoop) -> PinInfo:
        """Raises NotFound."""
        cache = _cache(loop)
        pin = _pin(cache, self.tenant, self.id)
        seconds = pin.firm_ttl_seconds if self.lifetime is None else self.lifetime.seconds
        return cache.pinning.change(pin, name=pin.name if self.name is None else self.name, ttl_seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePin:
    """Take a pin back. Its rows stay until their room is needed."""

    tenant: str
    id: str

    def perform(self, loop: EngineLoop) -> None:
        """Raises NotFound."""
        cache = _cache(loop)
        cache.pins.remove(_pin(cache, self.tenant, self.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Bytes of host RAM: what was freed, and what the tenant still holds."""

    freed_bytes: int
    kept_bytes: int
    undeleted_files: Future[int]
    """How many files of the disk tier could not be deleted, once all were tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearCache:
    """Forget everything of a tenant that is not in use and, unless ``pins``, not pinned."""

    tenant: str
    pins: bool

    def perform(self, loop: EngineLoop) -> Cleared:
        """Nothing is freed where the cache is off."""
        undeleted: Future[int] = Future()
        if loop.cache is None:
            undeleted.set_result(0)
            return Cleared(freed_bytes=0, kept_bytes=0, undeleted_files=undeleted)
        if self.pins:
            for pin in loop.cache.pins.of(self.tenant):
                loop.cache.pins.remove(pin)
        loop.forget_idle(self.tenant)
        freed = loop.cache.clear(self.tenant, undeleted.set_result)
        kept = loop.cache.held_bytes(self.tenant)
        return Cleared(freed_bytes=freed, kept_bytes=kept, undeleted_files=undeleted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a call would begin with, by what is known at one moment."""

    report: CallReport
    pending_saves: int
    """Finished sequences that are still being saved; when they are, more may be restored."""
    cache: bool
    """Whether the server keeps anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewCall:
    """Say what a call would begin with. It takes no place in the queue, and nothing is touched for it."""

    request: GenerationRequest

    def perform(self, loop: EngineLoop) -> Preview:
        """As if it were admitted now and prefilled to its end; all durations are 0."""
        request = replace(self.request, choices=1)
        call = open_call(request, _Nobody(), context_tokens=loop.runtime.limits.context_tokens)
        loop.preview(call)
        report = call.report(request.received_seconds)
        return Preview(report=report, pending_saves=loop.pending_saves, cache=loop.cache is not None)


class _Nobody:
    """The consumer of a call that is never run."""

    def on_token(self, choice: int, token: SampledToken) -> bool:
        return True

    def on_finish(self, choice: int, reason: FinishReason) -> None: ...

    def on_done(self, report: CallReport) -> None: ...

    def on_error(self, error: AnchorlineError, report: CallReport | None) -> None: ...


def _cache(loop: EngineLoop) -> PrefixCache:
    if loop.cache is None:
        raise Conflict("the server keeps nothing: its cache is off", code="cache_off")
    return loop.cache


def _pin(cache: PrefixCache, tenant: str, id: str) -> Pin:
    cache.expire_pins()
    pin = cache.pins.find(tenant, id)
    if pin is None:
        raise NotFound(f"no anchor has the id {id[:100]!r}", field="id")
    return pin
