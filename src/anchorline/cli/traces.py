"""The recorded traces that a command is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from anchorline.bench.trace import Trace, chat_only, read_trace
from anchorline.errors import ConfigError
from anchorline.terminal import printable

SHOWN_PLACES = 5


def read_chat_traces(paths: Sequence[Path]) -> list[Trace]:
    """The chat calls of each file; says on stderr how many others there are.

    Raises ConfigError for a file that cannot be read or has no chat calls.
    """
    return [_chat_calls(read_trace(path)) for path in paths]


def told_left_out(name: str, left_out: Mapping[str, str], *, calls: int) -> list[str]:
    """A line for each reason why some of the ``calls`` of a trace were not used; ``left_out`` has it by place."""
    places: dict[str, list[str]] = {}
    for place, reason in left_out.items():
        places.setdefault(reason, []).append(place)
    return [
        f"{name}: {len(there)} of {calls} calls left out: {printable(reason)} ({_shown(there)})"
        for reason, there in places.items()
    ]


def _shown(places: Sequence[str]) -> str:
    more = len(places) - SHOWN_PLACES
    return ", ".join([*places[:SHOWN_PLACES], *([f"{more} more"] if more > 0 else [])])


def _chat_calls(trace: Trace) -> Trace:
    chat = chat_only(trace)
    if not chat.requests:
        raise ConfigError(f"no chat calls in: {trace.name} (of {len(trace.requests)} calls)")
    others = len(trace.requests) - len(chat.requests)
    if others:
        click.echo(f"{trace.name}: {others} of {len(trace.requests)} calls left out: not chat completions", err=True)
    return chat
