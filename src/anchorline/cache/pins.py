"""Pins: promises that a segment, and with it its parents, stays. Pure bookkeeping; time is passed in.

Pins are bounded in number and bytes. When one more is too much, those that have to give way to it go, weakest
kind first, of heads what is worth least and of others what was used longest ago; when that does not help it is
refused and nothing changes. To a head only heads give way that are worth less.

    gives way to      head   wish   explicit
    head               yes    yes     yes        made by the server for system + tools
    wish                      yes     yes        breakpoint, conversation: asked for by a call
    explicit                                     asked for by a person; goes only when told to, or in its time

Other caches may have pins within the same budget (``OtherPins``). They give way by the same table, before any of these.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from anchorline.cache.segment import Segment

log = logging.getLogger("anchorline.cache")


class PinKind(StrEnum):
    """Who asked for a pin."""

    HEAD = "head"
    """The server: the end of system + tools."""
    BREAKPOINT = "breakpoint"
    """A call, for a part of its prompt."""
    CONVERSATION = "conversation"
    """A call, for the conversation that it names; moves on with it."""
    EXPLICIT = "explicit"
    """A person, or a program that warms the cache."""

    @property
    def rank(self) -> int:
        return _RANKS[self]

    def gives_way_to(self, kind: PinKind) -> bool:
        """Explicit pins do to none, others to those of their own rank or a higher one."""
        return self is not PinKind.EXPLICIT and self.rank <= kind.rank


_RANKS = {PinKind.HEAD: 0, PinKind.BREAKPOINT: 1, PinKind.CONVERSATION: 1, PinKind.EXPLICIT: 2}


class PinEnd(StrEnum):
    """Why a pin is gone."""

    EXPIRED = "expired"
    GAVE_WAY = "gave_way"
    """To another pin, or to a machine short of memory."""
    LOST = "lost"
    """Its rows or its state are gone, as after a refused restore."""
    REMOVED = "removed"
    """Somebody asked for it."""


class PinRefusal(StrEnum):
    """Why a pin was not made."""

    OVER_BUDGET = "over_budget"
    TOO_MANY = "too_many"
    NOT_KEPT = "not_kept"
    """The cache does not hold its rows."""
    NO_STATE = "no_state"
    """The model resumes only where a state is kept, and none is before its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinOrder:
    """A pin as it is asked for. Orders with one ``id`` are for one pin, whatever their kind."""

    id: str
    kind: PinKind
    tenant: str
    segment: Segment
    ttl_seconds: float | None = None
    """None: until it is removed or gives way."""
    name: str | None = None
    tool_fingerprint: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Pin:
    """One pin; changed by ``Pins`` alone."""

    id: str
    kind: PinKind
    tenant: str
    segment: Segment
    used_seconds: float
    """When it was made, matched or asked for again last."""
    ttl_seconds: float | None = None
    name: str | None = None
    tool_fingerprint: str | None = None
    is_head: bool = False
    """Whether the server would pin this anyway: when its time is over it stays as a head."""

    @property
    def tokens(self) -> int:
        return self.segment.end

    @property
    def nbytes(self) -> int:
        """Bytes of the whole path and the state at its end, also where other pins hold parts of them."""
        return pinned_bytes([self.segment])

    @property
    def firm_ttl_seconds(self) -> float | None:
        """The TTL that it has as an explicit pin, where nothing else is said: those of other kinds are made to end."""
        return self.ttl_seconds if self.kind is PinKind.EXPLICIT else None

    @property
    def expires_seconds(self) -> float:
        return math.inf if self.ttl_seconds is None else self.used_seconds + self.ttl_seconds


class OtherPins(Protocol):
    """Pins of other caches, which are not in use."""

    @property
    def pinned_bytes(self) -> int:
        """What they hold."""

    @property
    def ended(self) -> Counter[str]:
        """Those that are gone, by PinEnd; only grows."""

    def expire(self) -> None:
        """End those whose time is over."""

    def firm_bytes(self, kind: PinKind) -> int:
        """What they hold once all have gone that give way to a pin of this kind."""

    def give_way(self, kind: PinKind) -> bool:
        """End the first that gives way to a pin of this kind; False when there is none."""


class _NoPins:
    """Implements ``OtherPins`` where there are no other caches."""

    pinned_bytes = 0
    ended: Counter[str] = Counter()  # noqa: RUF012  (stays empty)

    def expire(self) -> None: ...

    def firm_bytes(self, kind: PinKind) -> int:
        return 0

    def give_way(self, kind: PinKind) -> bool:
        return False


NO_PINS = _NoPins()


class Pins:
    """Every pin of one cache, least recently used first."""

    def __init__(
        self, *, limit_bytes: int, limit: int, worth: Callable[[Segment], float], others: OtherPins = NO_PINS
    ) -> None:
        """``limit_bytes`` is for these and ``others`` together, ``limit`` for these alone.

        ``worth`` is the eviction policy's: of two heads the one that is worth less gives way.
        """
        self.limit_bytes = limit_bytes
        self.limit = limit
        self.others = others
        self._worth = worth
        self.ended: Counter[str] = Counter()
        """Pins that are gone, by PinEnd; only grows."""
        self.refused: Counter[str] = Counter()
        """Pins that were not made, by PinRefusal; only grows."""
        self.changes = 0
        """Times that a segment was pinned, or a pin of it ended; only grows."""
        self._pins: OrderedDict[str, Pin] = OrderedDict()
        self._due_seconds = math.inf
        """No pin expires before this."""

    def __len__(self) -> int:
        return len(self._pins)

    def of(self, tenant: str) -> list[Pin]:
        """A tenant's pins, least recently used first."""
        return [pin for pin in self._pins.values() if pin.tenant == tenant]

    def find(self, tenant: str, id: str) -> Pin | None:
        pin = self._pins.get(id)
        return pin if pin is not None and pin.tenant == tenant else None

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the pinned paths and the states at their ends, each counted once."""
        return pinned_bytes(pin.segment for pin in self._pins.values())

    def segments(self) -> list[Segment]:
        """Where the pins lie, the least recently used first."""
        return [pin.segment for pin in self._pins.values()]

    def firm(self) -> list[Pin]:
        """The pins that give way to nothing."""
        return [pin for pin in self._pins.values() if pin.kind is PinKind.EXPLICIT]

    def giving_way_to(self, kind: PinKind) -> list[Pin]:
        """The pins that give way to one of this kind."""
        return [pin for pin in self._pins.values() if pin.kind.gives_way_to(kind)]

    def firm_bytes(self, kind: PinKind) -> int:
        """Bytes of the pins that do not."""
        return pinned_bytes(pin.segment for pin in self._pins.values() if not pin.kind.gives_way_to(kind))

    def room_bytes(self, kind: PinKind) -> int:
        """What pins of this cache may hold when one of this kind is made."""
        return max(0, self.limit_bytes - self.others.firm_bytes(kind))

    # -- making -------------------------------------------------------------------------------

    def pin(self, order: PinOrder, now: float) -> Pin | PinRefusal:
        """Make or refresh the pin that ``order`` asks for; others may have to give way.

        When it is refused nothing changes. Refusals are counted by ``refuse``, since the caller may ask again.
        """
        held = self._pins.get(order.id)
        if held is None or held.segment is not order.segment:
            place = self._make_place(order)
            if isinstance(place, PinRefusal):
                return place
            for pin in place.going:
                self.give_way(pin)
            while self.others.pinned_bytes > self.limit_bytes - place.held_bytes and self.others.give_way(order.kind):
                pass
        if held is None:
            held = Pin(
                id=order.id,
                kind=order.kind,
                tenant=order.tenant,
                segment=order.segment,
                used_seconds=now,
                ttl_seconds=order.ttl_seconds,
                name=order.name,
                tool_fingerprint=order.tool_fingerprint,
            )
            held.segment.pins += 1
            self.changes += 1
            self._pins[held.id] = held
            log.log(_level(held.kind), "pinned %s", describe(held))
        elif held.segment is not order.segment:
            held.segment.pins -= 1
            held.segment = order.segment
            held.segment.pins += 1
            self.changes += 1
        _strengthen(held, order)
        self._use(held, now)
        return held

    def change(self, pin: Pin, *, id: str, name: str | None, ttl_seconds: float | None, now: float) -> Pin:
        """Make ``pin`` explicit, with this name and TTL, under ``id``; a pin that has that id takes its place."""
        if id != pin.id:
            same = self._pins.get(id)
            if same is not None:
                self._end(pin, PinEnd.REMOVED)
                pin = same
            else:
                del self._pins[pin.id]
                pin.id = id
                self._pins[id] = pin
        pin.kind, pin.name, pin.ttl_seconds = PinKind.EXPLICIT, name, ttl_seconds
        self._use(pin, now)
        log.info("changed %s", describe(pin))
        return pin

    def refuse(self, reason: PinRefusal, kind: PinKind, tokens: int) -> None:
        """Count and log a pin that was not made."""
        self.refused[reason] += 1
        log.log(_level(kind), "not pinned (%s): %s of %d tokens", reason, kind, tokens)

    def _make_place(self, order: PinOrder) -> _Place | PinRefusal:
        """What becomes of the pins so that ``order`` fits, or why it cannot fit."""
        beside = [pin for pin in self._pins.values() if pin.id != order.id]
        count, held = len(beside) + 1, _Tally(pin.segment for pin in beside)
        room_bytes = self.room_bytes(order.kind)
        held.add(order.segment)
        going: list[Pin] = []
        for pin in self._weaker(beside, order):
            if count <= self.limit and held.nbytes <= room_bytes:
                break
            before = held.nbytes
            held.remove(pin.segment)
            if count <= self.limit and held.nbytes == before:  # others hold the same bytes: it would go for nothing
                held.add(pin.segment)
                continue
            going.append(pin)
            count -= 1
        if count > self.limit:
            return PinRefusal.TOO_MANY
        return _Place(going, held.nbytes) if held.nbytes <= room_bytes else PinRefusal.OVER_BUDGET

    def _weaker(self, pins: Iterable[Pin], order: PinOrder) -> list[Pin]:
        """Those of ``pins`` that give way to ``order``, in the order in which they go."""
        weaker = [pin for pin in pins if pin.kind.gives_way_to(order.kind)]
        if order.kind is PinKind.HEAD:
            worth = self._worth(order.segment)
            weaker = [pin for pin in weaker if self._worth(pin.segment) < worth]
        return sorted(weaker, key=self._firmness)

    def _firmness(self, pin: Pin) -> tuple[int, float]:
        """The smallest goes first; of the same the one used longest ago."""
        return pin.kind.rank, self._worth(pin.segment) if pin.kind is PinKind.HEAD else 0.0

    # -- using --------------------------------------------------------------------------------

    def use_all(self, segments: Iterable[Segment], *, tenant: str, now: float) -> None:
        """Refresh a tenant's pins on ``segments``."""
        used = {id(segment) for segment in segments if segment.pins}
        if not used:
            return
        for pin in self.of(tenant):
            if id(pin.segment) in used:
                self._use(pin, now)

    def _use(self, pin: Pin, now: float) -> None:
        pin.used_seconds = now
        self._pins.move_to_end(pin.id)
        self._due_seconds = min(self._due_seconds, pin.expires_seconds)

    # -- ending -------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """End the pins whose time is over; heads among them stay as such."""
        if now < self._due_seconds:
            return
        for pin in [pin for pin in self._pins.values() if pin.expires_seconds <= now]:
            if pin.is_head:
                log.info("expired, stays as a head: %s", describe(pin))
                pin.kind, pin.ttl_seconds, pin.name = PinKind.HEAD, None, None
            else:
                self._end(pin, PinEnd.EXPIRED)
        self._due_seconds = min((pin.expires_seconds for pin in self._pins.values()), default=math.inf)

    def remove(self, pin: Pin) -> None:
        """End a pin that nobody wants any more."""
        self._end(pin, PinEnd.REMOVED)

    def give_way(self, pin: Pin) -> None:
        """End a pin for another one, or for a machine short of memory."""
        self._end(pin, PinEnd.GAVE_WAY)

    def release_weakest(self) -> bool:
        """Give up the pin that gives way first; False when only explicit ones are left."""
        if self.others.give_way(PinKind.EXPLICIT):
            return True
        weaker = self.giving_way_to(PinKind.EXPLICIT)
        if not weaker:
            return False
        self.give_way(min(weaker, key=self._firmness))
        return True

    def forget_lost(self, *, stateful: bool) -> None:
        """End the pins whose rows are gone, or with a stateful model their state."""
        for pin in list(self._pins.values()):
            if pin.segment.rows is None or (stateful and pin.segment.state is None):
                self._end(pin, PinEnd.LOST)

    def _end(self, pin: Pin, reason: PinEnd) -> None:
        del self._pins[pin.id]
        pin.segment.pins -= 1
        self.changes += 1
        self.ended[reason] += 1
        log.log(_level(pin.kind), "unpinned (%s) %s", reason, describe(pin))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a pin fits: the pins of its cache that go for it, and what those that stay hold with it."""

    going: Sequence[Pin]
    held_bytes: int


def describe(pin: Pin) -> str:
    """A pin for a log line or an error: no text of it but the name."""
    named = f" {pin.name!r}" if pin.name is not None else ""
    return f"{pin.id}{named} ({pin.kind}, {pin.tokens} tokens)"


def pinned_bytes(segments: Iterable[Segment]) -> int:
    """Bytes that pins on ``segments`` hold, each counted once."""
    return _Tally(segments).nbytes


class _Tally:
    """Bytes that pins hold: the rows of their paths, and the states at their ends. States before the end may go.

    A node is held by the pins at its end and by the children that are held, so each is walked once, not once per pin.
    """

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.nbytes = 0
        self._holders: Counter[Segment] = Counter()
        self._states: Counter[Segment] = Counter()
        for segment in segments:
            self.add(segment)

    def add(self, segment: Segment) -> None:
        self._states[segment] += 1
        if self._states[segment] == 1:
            self.nbytes += segment.state_bytes
        node: Segment | None = segment
        while node is not None:
            self._holders[node] += 1
            if self._holders[node] > 1:
                return
            self.nbytes += node.row_bytes
            node = node.parent

    def remove(self, segment: Segment) -> None:
        self._states[segment] -= 1
        if self._states[segment] == 0:
            self.nbytes -= segment.state_bytes
        node: Segment | None = segment
        while node is not None:
            self._holders[node] -= 1
            if self._holders[node]:
                return
            self.nbytes -= node.row_bytes
            node = node.parent


def _strengthen(pin: Pin, order: PinOrder) -> None:
    """What another order for a pin that is there changes: it never makes it weaker, nor its time shorter."""
    pin.is_head |= order.kind is PinKind.HEAD
    pin.tool_fingerprint = order.tool_fingerprint or pin.tool_fingerprint
    if order.kind is PinKind.EXPLICIT:
        pin.kind, pin.name, pin.ttl_seconds = order.kind, order.name, order.ttl_seconds
    elif order.kind.rank > pin.kind.rank:
        pin.kind, pin.ttl_seconds = order.kind, order.ttl_seconds
    elif order.kind.rank == pin.kind.rank and pin.ttl_seconds is not None and order.ttl_seconds is not None:
        pin.ttl_seconds = max(pin.ttl_seconds, order.ttl_seconds)


def _level(kind: PinKind) -> int:
    """Heads come and go with every agent."""
    return logging.DEBUG if kind is PinKind.HEAD else logging.INFO
