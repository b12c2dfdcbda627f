"""The caches of models that are not loaded, in one arena with that of the model that is.

    arena    |== A, parked ==|== in use ==|== B, parked ==|=== in use ===|  free  |

So all of them together hold no more than the arena does, whatever is loaded. What the cache in use needs goes before
anything that is parked: first from the cache that was left longest ago, in the order of its own policy. What is pinned
there stays until the pin's time is over; the pin budget is one for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from anchorline.cache.eviction import Victims
from anchorline.cache.host import HostArena
from anchorline.cache.prefix_cache import PrefixCache


@dataclass(slots=True)
class _Parked:
    identity: bytes
    cache: PrefixCache
    victims: Victims
    """Nothing changes what they are worth while the cache is not in use, but for the end of pins."""


class ParkedCaches:
    """Owned by whoever owns the cache in use; passed on with it from thread to thread."""

    def __init__(self, arena: HostArena) -> None:
        self.arena = arena
        self._parked: dict[str, _Parked] = {}
        """By model, the one that was left longest ago first."""

    @property
    def pinned_bytes(self) -> int:
        """What pins hold of the parked caches."""
        return sum(parked.cache.pins.pinned_bytes for parked in self._parked.values())

    def park(self, model: str, identity: bytes, cache: PrefixCache) -> None:
        """Keep the cache that ``model`` leaves. ``identity`` says what its bytes mean; nothing of it may be leased."""
        assert model not in self._parked, "a model is loaded once"
        assert cache.arena is self.arena, "all caches share one arena"
        self._parked[model] = _Parked(identity, cache, cache.storage.victims())

    def take(self, model: str, identity: bytes) -> PrefixCache | None:
        """The cache that ``model`` left, if its bytes mean the same; otherwise it is discarded."""
        parked = self._parked.pop(model, None)
        if parked is None:
            return None
        if parked.identity != identity:
            parked.cache.discard()
            return None
        return parked.cache

    def expire_pins(self) -> None:
        """End the pins whose time is over; what they held may go."""
        for parked in self._parked.values():
            pins = len(parked.cache.pins)
            parked.cache.expire_pins()
            if len(parked.cache.pins) < pins:
                parked.victims = parked.cache.storage.victims()

    def drop_next(self) -> bool:
        """Give up the least valuable thing of the cache that was left longest ago; False when nothing may go."""
        self.expire_pins()
        return any(parked.victims.drop_next() for parked in self._parked.values())
