"""The live sequences: what lies in llama.cpp's pool, whose it is, and how many cells it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anchorline.cache.classes import CallClass
from anchorline.cache.plan import Resident
from anchorline.cache.prompt import Owners, Prompt
from anchorline.cache.rows import State
from anchorline.cache.tokens import common_prefix
from anchorline.engine.cells import CellMap, Runs, reach
from anchorline.errors import BackendFailure
from anchorline.llama.interface import Runtime, TokenArray


class TokenBuffer:
    """A growing array of token ids; slices of it are views."""

    __slots__ = ("_array", "count")

    def __init__(self, tokens: TokenArray, *, spare: int) -> None:
        self._array = np.empty(tokens.size + spare, dtype=np.int32)
        self._array[: tokens.size] = tokens
        self.count = int(tokens.size)

    def append(self, token: int) -> None:
        if self.count == self._array.size:
            self._array = np.concatenate((self._array, np.empty(max(self.count, 64), dtype=np.int32)))
        self._array[self.count] = token
        self.count += 1

    def view(self, start: int, end: int) -> TokenArray:
        assert 0 <= start <= end <= self.count
        return self._array[start:end]


@dataclass(slots=True)
class PendingSave:
    """A save under way: each step of ``pieces`` keeps one; ``states`` are those it has not taken over yet."""

    pieces: Iterator[int]
    states: dict[int, State]


class LiveSequence:
    """One sequence of the pool: the first ``length`` tokens of ``buffer`` are decoded into its cells."""

    __slots__ = (
        "buffer",
        "busy",
        "call_class",
        "id",
        "idle_since_seconds",
        "last_used",
        "length",
        "prompt",
        "saving",
        "shared",
        "shared_with",
        "states",
    )

    def __init__(self, sequence: int, prompt: Prompt, buffer: TokenBuffer) -> None:
        self.id = sequence
        self.prompt = prompt
        self.buffer = buffer
        self.length = 0
        self.busy = True
        self.call_class = CallClass.COLD
        """Of the call that it runs for, or ran for last."""
        self.idle_since_seconds = 0.0
        """When its last call ended, once one has."""
        self.last_used = 0
        self.shared_with: LiveSequence | None = None
        self.shared = 0
        """Leading tokens whose cells belong to ``shared_with`` too, and are counted there; 0 without one."""
        self.saving: PendingSave | None = None
        self.states: dict[int, State] = {}
        """States captured at positions of this history that no save has been given yet."""

    @property
    def decoded(self) -> TokenArray:
        return self.buffer.view(0, self.length)

    def share(self, source: LiveSequence | None, tokens: int) -> None:
        """Let the cells of the first ``tokens`` be ``source``'s, too."""
        self.shared, self.shared_with = tokens, source if tokens else None

    @property
    def cells(self) -> int:
        """Cells counted to this sequence; an upper bound of what its removal frees."""
        return self.length - self.shared


class SequencePool:
    """Sequence ids and cells of one runtime. Of cells that several sequences hold each is counted to one of them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._capabilities = runtime.capabilities
        self._free_ids = list(range(runtime.limits.sequences - 1, -1, -1))
        self._live: dict[int, LiveSequence] = {}
        self._map = CellMap()
        self._clock = 0

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(list(self._live.values()))

    def __getitem__(self, sequence: int) -> LiveSequence:
        return self._live[sequence]

    @property
    def used_cells(self) -> int:
        if not self._capabilities.has_rows:
            return 0
        return sum(live.cells for live in self._live.values())

    @property
    def free_cells(self) -> int:
        return self._runtime.limits.context_tokens - self.used_cells

    def cells_of(self, live: LiveSequence) -> Runs:
        """The cells that ``live`` most likely lies in, those that it shares among them."""
        self._survey()
        return self._map.runs(live.id)

    def reach(self, added: int) -> int:
        """Up to which cell attention runs once ``added`` more are taken."""
        self._survey()
        return reach([self._map.runs(sequence) for sequence in self._live], added)

    def _survey(self) -> None:
        """Let the map know how long the sequences are; before any loses cells, since others grow into those."""
        if self._capabilities.has_rows:
            for live in self._live.values():
                self._map.resize(live.id, live.length)

    @property
    def has_free_id(self) -> bool:
        return bool(self._free_ids)

    def idle(self) -> list[LiveSequence]:
        """Finished sequences, least recently used first."""
        return sorted((live for live in self._live.values() if not live.busy), key=lambda live: live.last_used)

    def residents(self, tokens: TokenArray, owners: Owners) -> list[Resident]:
        """Every live sequence that the ``tokens`` of ``owners`` can go on from: one that agrees with their beginning.

        With a stateful model it must agree to its tip, and ``tokens`` must go on behind that.
        """
        found = []
        for live in self._live.values():
            usable = owners.usable(live.prompt.owners, live.length)
            agreed = common_prefix(live.decoded[:usable], tokens)
            if agreed and (self._capabilities.can_trim or agreed == live.length < tokens.size):
                resident = Resident(sequence=live.id, match_tokens=agreed, length_tokens=live.length, busy=live.busy)
                found.append(resident)
        return found

    def goes_on_with(self, sequence: int, position: int, owners: Owners) -> TokenArray:
        """What a live sequence holds behind ``position``, as far as ``owners`` may use it."""
        live = self._live[sequence]
        return live.decoded[position : owners.usable(live.prompt.owners, live.length)]

    def common_tokens(self, live: LiveSequence) -> int:
        """Leading tokens of ``live`` whose cells others hold, too, and would keep without it."""
        return max([live.shared, *(other.shared for other in self._live.values() if other.shared_with is live)])

    def gives_up(self, live: LiveSequence, length: int) -> int:
        """Cells that are free once ``live`` is trimmed to ``length``."""
        return max(0, live.length - max(length, self.common_tokens(live)))

    def create(self, prompt: Prompt, buffer: TokenBuffer) -> LiveSequence:
        """An empty busy sequence under a free id."""
        live = LiveSequence(self._free_ids.pop(), prompt, buffer)
        self._live[live.id] = live
        self.touch(live)
        return live

    def fork(self, source: LiveSequence, length: int, prompt: Prompt, buffer: TokenBuffer) -> LiveSequence:
        """A new busy sequence that shares the first ``length`` cells of ``source``.

        Raises BackendFailure, with nothing changed, when they cannot be shared (a window has no room).
        """
        assert self._capabilities.can_trim or length == source.length
        live = self.create(prompt, buffer)
        try:
            self._runtime.copy_sequence(source.id, live.id, 0, length)
        except BackendFailure:
            self.drop(live)
            raise
        self._survey()
        self._map.share(source.id, live.id, length)
        live.length = length
        live.share(source, length)
        return live

    def take_over(self, live: LiveSequence, length: int, prompt: Prompt, buffer: TokenBuffer) -> None:
        """Trim an idle sequence to ``length`` and go on with it under another prompt."""
        assert not live.busy
        self.trim(live, length)
        live.prompt, live.buffer, live.busy = prompt, buffer, True
        self.touch(live)

    def trim(self, live: LiveSequence, length: int) -> None:
        """Drop the cells of ``live`` behind ``length``; stateful models can't, so there must be none."""
        assert length <= live.length
        assert self._capabilities.can_trim or length == live.length
        if length < live.length:
            self._remove_from(live, length)

    def empty(self, live: LiveSequence) -> None:
        """Drop every cell of ``live``, known of or not."""
        self._remove_from(live, 0)

    def _remove_from(self, live: LiveSequence, length: int) -> None:
        self._runtime.remove(live.id, length)
        self._survey()
        self._hand_on(live, length)
        live.length = length
        self._map.resize(live.id, length)

    def drop(self, live: LiveSequence) -> None:
        """Empty a sequence and give its id back; cells shared with others stay theirs."""
        self._runtime.remove(live.id, 0)
        self._survey()
        self._hand_on(live, 0)
        self._map.remove(live.id)
        del self._live[live.id]
        self._free_ids.append(live.id)

    def _hand_on(self, live: LiveSequence, kept: int) -> None:
        """Count elsewhere what others share of ``live`` behind the first ``kept`` tokens, which are all it keeps.

        live    |=== kept ===|- - - - - - - -|   it may share with one before it beyond that, too
        heir    |============|===========|=      is counted what it shared, but for what ``live`` shared or keeps
        other   |============|=====|===          shares with the heir from now on
        """
        sharers = [other for other in self._live.values() if other.shared_with is live and other.shared > kept]
        if sharers:
            heir = max(sharers, key=lambda other: other.shared)
            for other in sharers:
                if other is not heir:
                    other.shared_with = heir
            if live.shared > kept:
                heir.share(live.shared_with, min(live.shared, heir.shared))
            else:
                heir.share(live, kept)
        live.share(live.shared_with, min(live.shared, kept))

    def demote_kin(self, tokens: TokenArray, successor: LiveSequence | None, *, beyond: int) -> None:
        """Let the idle sequence go first of all that shares most of ``tokens``, if more than their first ``beyond``.

        Unless it is ``successor``, which goes on with them.
        """
        kin, most = None, beyond
        for live in self.idle():
            shared = common_prefix(live.decoded, tokens)
            if live is not successor and shared > most:
                kin, most = live, shared
        if kin is not None:
            kin.last_used = 0

    def touch(self, live: LiveSequence) -> None:
        self._clock += 1
        live.last_used = self._clock
