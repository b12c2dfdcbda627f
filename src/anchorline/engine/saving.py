"""Write-behind saving: sequences are exported piece by piece between the steps, and long chains merged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from anchorline.cache.compaction import CHAIN_SEGMENTS_IDLE, CHAIN_SEGMENTS_MAX
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.rows import State
from anchorline.cache.storage import Allocate, Export
from anchorline.engine.live import LiveSequence, PendingSave
from anchorline.errors import BackendFailure
from anchorline.llama.interface import Runtime


class Saver:
    """Exports live sequences to the cache. A sequence is saved in full before its cells change.

    With ``cache`` None nothing is saved.
    """

    def __init__(self, runtime: Runtime, cache: PrefixCache | None) -> None:
        self._runtime = runtime
        self._cache = cache
        self._queue: deque[LiveSequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def has_work(self) -> bool:
        return bool(self._queue)

    def enqueue(self, live: LiveSequence) -> None:
        """Save the decoded tokens of ``live`` and its captured states, later; it may go on meanwhile."""
        if self._cache is None or live.length == 0:
            return
        self.flush(live)
        states, live.states = live.states, {}
        live.saving = PendingSave(self._save(self._cache, live, states), states)
        self._queue.append(live)

    def advance(self) -> None:
        """Save one piece of the oldest entry, or merge one group of its segments once it is saved."""
        live = self._queue[0]
        assert live.saving is not None
        if next(live.saving.pieces, None) is None and not self._merge(live, CHAIN_SEGMENTS_IDLE):
            self._queue.popleft()
            live.saving = None

    def flush(self, live: LiveSequence) -> None:
        """Finish saving ``live`` now: its cells are about to change. Only what must be merged is."""
        if live.saving is None:
            return
        for _ in live.saving.pieces:
            pass
        while self._merge(live, CHAIN_SEGMENTS_MAX):
            pass
        live.saving = None
        self._queue.remove(live)

    def flush_all(self) -> None:
        """Finish every save: a match is about to be made that may need what is being saved."""
        while self._queue:
            self.flush(self._queue[0])

    def abandon(self, live: LiveSequence) -> None:
        """Forget about saving ``live``: its cells are lost, or are not to be kept."""
        unsaved = [live.states]
        if live.saving is not None:
            unsaved.append(live.saving.states)
            live.saving = None
            self._queue.remove(live)
        for states in unsaved:
            for state in states.values():
                state.release()
            states.clear()

    def capture(self, live: LiveSequence, *, ends_reply: bool) -> None:
        """Hold the state at the tip of ``live`` until it is saved; nothing for models without states."""
        if self._cache is None or not self._runtime.capabilities.has_state or live.length in live.states:
            return

        def export(allocate: Allocate) -> memoryview | None:
            try:
                return self._runtime.export_state(live.id, allocate)
            except BackendFailure:
                return None

        state = self._cache.capture(
            live.prompt, live.decoded, export, call_class=live.call_class, ends_reply=ends_reply
        )
        if state is not None:
            live.states[live.length] = state

    def _save(self, cache: PrefixCache, live: LiveSequence, states: dict[int, State]) -> Iterator[int]:
        return cache.save(live.prompt, live.decoded, self._exporter(live), states, call_class=live.call_class)

    def _merge(self, live: LiveSequence, limit: int) -> bool:
        assert self._cache is not None
        return self._cache.merge(live.prompt, live.decoded, self._exporter(live), limit=limit)

    def _exporter(self, live: LiveSequence) -> Export:
        def export(start: int, end: int, allocate: Allocate) -> memoryview | None:
            try:
                return self._runtime.export_rows(live.id, start, end, allocate)
            except BackendFailure:
                return None

        return export
