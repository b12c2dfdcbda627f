"""What engines count that run one after another, some of them with the cache of an earlier one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from anchorline.cache.storage import CacheCounters
from anchorline.engine.stats import EngineStats
from anchorline.metrics.engine import EngineCounts


class Engine:
    """Begins to decode at 0; its cache may have saved something before."""

    def __init__(self, *, saved: int = 0, oversize: int = 0) -> None:
        self.decoded = 0
        self.saved = saved
        self.oversize = oversize

    def stats(self) -> EngineStats:
        cache = CacheCounters(saved_segments=self.saved, unsaved=Counter(oversize=self.oversize))
        return replace(EngineStats.of_none(), decode_calls=self.decoded, cache=cache)


def test_each_thing_is_counted_once() -> None:
    counts = EngineCounts()
    first = Engine()
    counts.begin(first.stats)
    first.decoded, first.saved, first.oversize = 10, 5, 1
    assert told(counts) == (10, 5, 1)
    other = Engine()
    counts.begin(other.stats)
    assert told(counts) == (10, 5, 1)
    other.decoded, other.saved = 3, 2
    again = Engine(saved=first.saved, oversize=first.oversize)
    counts.begin(again.stats)
    assert told(counts) == (13, 7, 1)
    again.decoded, again.saved, again.oversize = 1, 6, 3
    assert told(counts) == (14, 8, 3)


def told(counts: EngineCounts) -> tuple[int, int, int]:
    total = counts.total()
    return total["decode_calls", ""], total["saved_segments", ""], total["unsaved_cuts", "oversize"]


def test_pins_that_ended_while_their_model_was_not_loaded_count_too() -> None:
    counts = EngineCounts()
    stats = EngineStats.of_none()
    counts.begin(lambda: stats)
    stats = replace(stats, pins_ended=Counter(expired=1), parked_pins_ended=Counter(expired=1, gave_way=2))
    assert counts.total()["pins_ended", "expired"] == 2
    assert counts.total()["pins_ended", "gave_way"] == 2
