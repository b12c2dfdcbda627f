"""The recorded traces that a command is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from anchorline.bench.trace import Trace, chat_only, read_trace
from anchorline.errors import ConfigError


def read_chat_traces(paths: Sequence[Path]) -> list[Trace]:
    """The chat calls of each file; says on stderr how many others there are.

    Raises ConfigError for a file that cannot be read or has no chat calls.
    """
    return [_chat_calls(read_trace(path)) for path in paths]


def _chat_calls(trace: Trace) -> Trace:
    chat = chat_only(trace)
    if not chat.requests:
        raise ConfigError(f"no chat calls in: {trace.name} (of {len(trace.requests)} calls)")
    others = len(trace.requests) - len(chat.requests)
    if others:
        click.echo(f"{trace.name}: {others} of {len(trace.requests)} calls left out: not chat completions", err=True)
    return chat
