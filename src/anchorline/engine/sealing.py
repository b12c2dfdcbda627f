"""Calls that are made ahead of need, and whether they pay. Pure: seconds are passed in.

A background call prefills the beginning of a likely next prompt while nothing else is to be done. What it prefilled
is *used* when a later call goes on behind it:

    sealed   |====== was there ======|--- prefilled ahead ---|
    call     |====== restored ===============|--- delta ---|
                                     |- used -|
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from anchorline.cache.tokens import common_prefix
from anchorline.engine.stream import Call, Stream
from anchorline.llama.interface import TokenArray

log = logging.getLogger("anchorline.engine")

IDLE_COST = 0.1
"""A second of idle time spent in vain counts as this part of a second that a client waited."""
MEMORY = 0.9
"""What the balance keeps of itself with each seal: about the last ten count."""
EVIDENCE = 5
"""Seals whose outcome is known before they may be found not to pay."""
PROBE_SECONDS = 300.0
"""While they don't pay, one is made after so long to see whether they would."""
WATCHED = 16
"""Seals that may still be used; the oldest then counts as made in vain."""


def giving_way(call: Call, streams: Iterable[Stream]) -> list[Call]:
    """The calls that end when ``call`` comes while ``streams`` run or wait: itself, or those made ahead of need."""
    if call.request.background:
        return [call] if any(True for _ in streams) else []
    return list({id(s.call): s.call for s in streams if s.call.request.background}.values())


def may_seal(*, pays: bool, since_last_seconds: float) -> bool:
    """Whether to make another seal."""
    return pays or since_last_seconds >= PROBE_SECONDS


@dataclass(frozen=True, slots=True)
class Balance:
    """Seconds that calls were spared, and that they and the idle machine spent on it; lately counts most."""

    gained_seconds: float = 0.0
    spent_seconds: float = 0.0
    outcomes: int = 0

    @property
    def pays(self) -> bool:
        return self.outcomes < EVIDENCE or self.gained_seconds >= self.spent_seconds

    def settled(self, *, prefilled_seconds: float, used_seconds: float) -> Balance:
        """With one more seal whose outcome is known."""
        return Balance(
            MEMORY * self.gained_seconds + used_seconds,
            MEMORY * self.spent_seconds + IDLE_COST * prefilled_seconds,
            self.outcomes + 1,
        )

    def delayed(self, seconds: float) -> Balance:
        """With a call that had to wait for a seal to give way."""
        return replace(self, spent_seconds=self.spent_seconds + seconds)


@dataclass(slots=True, kw_only=True)
class SealCounters:
    """Counters only grow; ``pays`` is what they say at present."""

    completed: int = 0
    gave_way: int = 0
    """Ended early, since another call came."""
    prefilled_tokens: int = 0
    used_tokens: int = 0
    delay_seconds: float = 0.0
    """How long calls waited for a seal to give way."""
    pays: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Seal:
    tokens: TokenArray
    start: int
    """Tokens before it were there already."""
    end: int


class SealLedger:
    """What sealing prefilled and what became of it. Owned by the engine thread."""

    def __init__(self) -> None:
        self.counters = SealCounters()
        self._balance = Balance()
        self._open: deque[_Seal] = deque()

    def sealed(self, tokens: TokenArray, start: int, end: int, *, seconds_per_token: float) -> None:
        """A background call ended; it has prefilled [start, end) of ``tokens``."""
        if end == tokens.size:
            self.counters.completed += 1
        else:
            self.counters.gave_way += 1
        if end <= start:
            return
        self.counters.prefilled_tokens += end - start
        self._open.append(_Seal(tokens, start, end))
        if len(self._open) > WATCHED:
            self._settle(self._open.popleft(), 0, seconds_per_token)

    def started(self, tokens: TokenArray, restored: int, *, seconds_per_token: float) -> None:
        """A call begins: ``restored`` of its ``tokens`` need no prefill."""
        for seal in list(self._open):
            reach = min(restored, seal.end)
            if reach > seal.start and common_prefix(seal.tokens[:reach], tokens) == reach:
                self._open.remove(seal)
                self._settle(seal, reach - seal.start, seconds_per_token)

    def delayed(self, delay_seconds: float) -> None:
        """A call found a background call running, and has waited so long by then."""
        self.counters.delay_seconds += delay_seconds
        self._weigh(self._balance.delayed(delay_seconds))

    def _settle(self, seal: _Seal, used_tokens: int, seconds_per_token: float) -> None:
        self.counters.used_tokens += used_tokens
        self._weigh(
            self._balance.settled(
                prefilled_seconds=(seal.end - seal.start) * seconds_per_token,
                used_seconds=used_tokens * seconds_per_token,
            )
        )

    def _weigh(self, balance: Balance) -> None:
        if balance.pays != self.counters.pays:
            state = "pays again" if balance.pays else "does not pay and is off, but for a probe now and then"
            log.info(
                "turn sealing %s: calls were spared %.3g s lately, for %.3g s",
                state,
                balance.gained_seconds,
                balance.spent_seconds,
            )
        self._balance = balance
        self.counters.pays = balance.pays
