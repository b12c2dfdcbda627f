"""The caches of models that are not loaded, in one arena with that of the model that is.

    arena    |== A, parked ==|== in use ==|== B, parked ==|=== in use ===|  free  |

So all of them together hold no more than the arena does, whatever is loaded. What the cache in use needs goes before
anything that is parked: first from the cache that was left longest ago, in the order of its own policy. What is pinned
there stays until the pin's time is over, or a pin of the cache in use needs its place: the pin budget is one for all.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from anchorline.cache.eviction import Victims
from anchorline.cache.host import HostArena
from anchorline.cache.pins import PinKind, describe
from anchorline.cache.prefix_cache import PrefixCache

log = logging.getLogger("anchorline.cache")


@dataclass(slots=True)
class _Parked:
    identity: bytes
    cache: PrefixCache
    victims: Victims = field(init=False)
    """Nothing changes what they are worth while the cache is not in use, but for the end of pins."""
    pinned_bytes: int = field(init=False)
    """The same holds for these."""

    def __post_init__(self) -> None:
        self.note_pins()

    def note_pins(self) -> None:
        """Pins have ended."""
        self.victims = self.cache.storage.victims()
        self.pinned_bytes = self.cache.pins.pinned_bytes


class ParkedCaches:
    """Owned by whoever owns the cache in use; passed on with it from thread to thread.

    Implements ``OtherPins`` for it: of weak pins those used longest ago go first, whichever cache they are in.
    """

    def __init__(self, arena: HostArena) -> None:
        self.arena = arena
        self._parked: dict[str, _Parked] = {}
        """By model, the one that was left longest ago first."""
        self._ended: Counter[str] = Counter()

    @property
    def pinned_bytes(self) -> int:
        """What pins hold of the parked caches; for any thread."""
        return sum(parked.pinned_bytes for parked in tuple(self._parked.values()))

    @property
    def ended(self) -> Counter[str]:
        """Pins that ended while their cache was parked, by PinEnd."""
        return self._ended

    def park(self, model: str, identity: bytes, cache: PrefixCache) -> None:
        """Keep the cache that ``model`` leaves. ``identity`` says what its bytes mean; nothing of it may be leased."""
        assert model not in self._parked, "a model is loaded once"
        assert cache.arena is self.arena, "all caches share one arena"
        self._parked[model] = _Parked(identity, cache)

    def take(self, model: str, identity: bytes) -> PrefixCache | None:
        """The cache that ``model`` left, if its bytes mean the same; otherwise it is discarded."""
        parked = self._parked.pop(model, None)
        if parked is None:
            return None
        if parked.identity != identity:
            parked.cache.discard()
            return None
        return parked.cache

    def expire(self) -> None:
        """End the pins whose time is over; what they held may go."""
        for parked in self._parked.values():
            with self._noting_ends(parked):
                parked.cache.pins.expire(parked.cache.pinning.clock())

    def firm_bytes(self, kind: PinKind) -> int:
        self.expire()
        return sum(parked.cache.pins.firm_bytes(kind) for parked in self._parked.values())

    def give_way(self, kind: PinKind) -> bool:
        weak = [
            (pin, model, parked)
            for model, parked in self._parked.items()
            for pin in parked.cache.pins.giving_way_to(kind)
        ]
        if not weak:
            return False
        pin, model, parked = min(weak, key=lambda each: (each[0].kind.rank, each[0].used_seconds))
        with self._noting_ends(parked):
            parked.cache.pins.give_way(pin)
        log.info("a pin of %s, which is not loaded, gave way: %s", model, describe(pin))
        return True

    @contextmanager
    def _noting_ends(self, parked: _Parked) -> Iterator[None]:
        """Take note of pins that end inside."""
        before = parked.cache.pins.ended.copy()
        yield
        if ended := parked.cache.pins.ended - before:
            self._ended += ended
            parked.note_pins()

    def drop_next(self) -> bool:
        """Give up the least valuable thing of the cache that was left longest ago; False when nothing may go."""
        self.expire()
        return any(parked.victims.drop_next() for parked in self._parked.values())
