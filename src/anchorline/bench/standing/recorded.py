"""Recorded agents as workloads: one call after the other, or overlapping as they were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anchorline.bench.calls import REPLY_TOKENS, capped
from anchorline.bench.standing.workloads import Call, Role, Step, Steps, one
from anchorline.bench.trace import Trace, chat_only, ended_before, mix_members, read_trace, round_robin
from anchorline.errors import ConfigError

MIX = ("hermes-fanout", "opencode", "cline", "pi", "langgraph")
"""Names of the traces, without ``.jsonl``; the first, Hermes, brings a second session on its head."""


def read_mix(folder: Path) -> list[Trace]:
    """The members of the mix. Raises ConfigError when one is not in ``folder``."""
    missing = [name for name in MIX if not (folder / f"{name}.jsonl").is_file()]
    if missing:
        raise ConfigError(f"{folder} has no {', '.join(f'{name}.jsonl' for name in missing)}")
    return mix_members([chat_only(read_trace(folder / f"{name}.jsonl")) for name in MIX])


def one_after_another(members: Sequence[Trace]) -> Steps:
    """One call of each member in turn."""
    numbered = [[(trace.name, index, request) for index, request in enumerate(trace.requests)] for trace in members]
    return tuple(
        one(f"{name} {index}", capped(request.body, max_tokens=REPLY_TOKENS), Role.OTHER)
        for name, index, request in round_robin(numbered)
    )


def as_recorded(members: Sequence[Trace]) -> Steps:
    """All members side by side in a single step; within one, a call overlaps those that it overlapped when recorded."""
    calls: list[Call] = []
    for trace in members:
        first = len(calls)
        for index, request in enumerate(trace.requests):
            after = tuple(first + earlier for earlier in ended_before(trace.requests, index))
            body = capped(request.body, max_tokens=REPLY_TOKENS)
            calls.append(Call(name=f"{trace.name} {index}", body=body, role=Role.OTHER, after=after))
    return (Step(calls=tuple(calls)),)
