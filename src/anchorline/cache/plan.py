"""The planner: where a prompt's prefix comes from. Pure: values in, a frozen plan out.

prompt   |----------------------------------------------|
resident |===== agrees =====|                              continue it, or fork it
host              |..........=======|                      then restore what reaches further
disk              |.................====|                  then first read what reaches further still
prefill                             |-------------------|  always at least the last token
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

GIVE_UP_TOKENS = 256
"""A resident sequence may lose this many tokens of its tail when it is continued …"""
GIVE_UP_FRACTION = 0.25
"""… or this share of what it keeps; beyond that it is forked and stays as it is."""


class Source(StrEnum):
    """Where the first restored tokens come from."""

    CONTINUE = "continue"
    FORK = "fork"
    HOST = "host"
    DISK = "disk"
    """The host tier, once more of the chain is read into it."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A live sequence that agrees with the prompt on its first ``match_tokens``."""

    sequence: int
    match_tokens: int
    length_tokens: int
    busy: bool
    """Still generating or prefilling: it may be forked, not continued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostChain:
    """The segments that agree with the prompt on its first ``match_tokens``, in the host tier or on disk."""

    match_tokens: int
    ends: tuple[int, ...]
    """Ascending ends of the segments; the last is ≥ ``match_tokens``."""
    bytes_per_token: float
    state_bytes: int = 0
    """Of the state that completes the chain of a stateful model."""
    load_bytes: int = 0
    """To be read from disk before the chain can be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Measured on this machine, smoothed; the planner's only idea of time."""

    prefill_seconds_per_token: float = 1e-3
    prefill_seconds_per_token_cell: float = 0.0
    """Part of it: what each cell that attention runs over adds."""
    restore_seconds_per_byte: float = 5e-10
    restore_seconds_per_segment: float = 1e-3
    load_seconds_per_byte: float = 2e-9
    """From disk into the host tier, verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the engine carries out.

    ``resident_tokens`` come from ``sequence`` (kept or shared), the following ones up to
    ``restored_tokens`` from the host chain, the rest is prefilled.
    """

    source: Source
    sequence: int | None
    resident_tokens: int
    restored_tokens: int
    expected_seconds: float
    load_bytes: int = 0
    """To be read from disk before this can be carried out."""
    rejected: tuple[tuple[Source, str], ...] = ()

    @property
    def host_tokens(self) -> int:
        return self.restored_tokens - self.resident_tokens


def make_plan(
    prompt_tokens: int,
    residents: Sequence[Resident],
    host: HostChain | None,
    speeds: Speeds,
    *,
    may_fork: bool,
    may_extend: bool = True,
    disk: HostChain | None = None,
) -> Plan:
    """The cheapest way to a prompt's last token; the losers are listed with what they would have cost.

    ``may_fork`` says whether a free sequence id is there, ``may_extend`` whether segments can be put
    behind resident tokens (not with a stateful model, whose chains begin in an empty sequence).
    ``disk`` is a chain that reaches further than ``host`` once more of it is read.
    Ties go to continuing, then to forking, then to the host, then to the disk. At least the last prompt token is
    always left to prefill.
    """
    usable = prompt_tokens - 1
    candidates = list(_candidates(usable, residents, (host, disk), may_fork=may_fork, may_extend=may_extend))
    priced = [
        Plan(
            source=source,
            sequence=None if resident is None else resident.sequence,
            resident_tokens=from_resident,
            restored_tokens=restored,
            load_bytes=0 if chain is None else chain.load_bytes,
            expected_seconds=restore_seconds(from_resident, restored, chain, speeds)
            + (prompt_tokens - restored) * speeds.prefill_seconds_per_token,
        )
        for source, resident, from_resident, restored, chain in candidates
    ]
    best = min(priced, key=lambda plan: (plan.expected_seconds, _PREFERENCE[plan.source], plan.load_bytes))
    return replace(best, rejected=tuple((plan.source, _account(plan)) for plan in priced if plan is not best))


def _account(plan: Plan) -> str:
    """What a plan would bring and cost, and which live sequence it would begin with."""
    sequence = "" if plan.sequence is None else f"sequence {plan.sequence}, "
    return f"{sequence}{plan.restored_tokens} tokens restored, {plan.expected_seconds * 1e3:.1f} ms expected"


_PREFERENCE = {Source.CONTINUE: 0, Source.FORK: 1, Source.HOST: 2, Source.DISK: 3, Source.NOTHING: 4}

_Candidate = tuple[Source, Resident | None, int, int, HostChain | None]


def _candidates(
    usable: int,
    residents: Sequence[Resident],
    chains: Sequence[HostChain | None],
    *,
    may_fork: bool,
    may_extend: bool,
) -> Iterator[_Candidate]:
    """(source, resident, tokens from it, tokens restored in all, by which chain) of every way there is."""
    reaches = [(min(chain.match_tokens, usable), chain) for chain in chains if chain is not None]
    yield Source.NOTHING, None, 0, 0, None
    for reach, chain in reaches:
        if reach > 0:
            yield Source.DISK if chain.load_bytes else Source.HOST, None, 0, reach, chain
    for resident in residents:
        shared = min(resident.match_tokens, usable)
        if shared <= 0:
            continue
        if _may_continue(resident, shared):
            source = Source.CONTINUE
        elif may_fork:
            source = Source.FORK
        else:
            continue
        yield source, resident, shared, shared, None
        for reach, chain in reaches:
            if may_extend and reach > shared:
                yield source, resident, shared, reach, chain


def _may_continue(resident: Resident, shared: int) -> bool:
    given_up = resident.length_tokens - shared
    return not resident.busy and given_up <= max(GIVE_UP_TOKENS, GIVE_UP_FRACTION * shared)


def restore_seconds(start: int, end: int, host: HostChain | None, speeds: Speeds) -> float:
    """Expected seconds to import the segments that lie in [start, end), and to read them; exports are taken whole."""
    if host is None or end <= start:
        return 0.0
    seconds = host.state_bytes * speeds.restore_seconds_per_byte + host.load_bytes * speeds.load_seconds_per_byte
    low = 0
    for high in host.ends:
        if high > start and low < end:
            seconds += speeds.restore_seconds_per_segment
            seconds += (high - low) * host.bytes_per_token * speeds.restore_seconds_per_byte
        low = high
    return seconds
