"""``anchorline record``: what agents send, written into a trace on its way to a server."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import click

from anchorline.bench.client import server_url
from anchorline.cli.logs import set_up_logging
from anchorline.cli.options import SettingOption, options_of
from anchorline.cli.proxy import PORT, calls, left_out, pass_on, proxy_socket
from anchorline.cli.suggest import SuggestingCommand
from anchorline.cli.values import SizeType, format_size
from anchorline.config import ServerConfig
from anchorline.limits import Limits
from anchorline.numbers import IntegerRangeType
from anchorline.record.anonymise import Anonymiser
from anchorline.record.recorder import Recorder
from anchorline.record.trace_file import TraceFile
from anchorline.record.trace_writer import TraceWriter

KEY_BYTES = 32
TRACE_BYTES = 1 << 30

RECORDING = (
    SettingOption(
        "--upstream", section="Recording", required=True, metavar="URL", help="The server that calls are sent on to."
    ),
    SettingOption(
        "--out",
        section="Recording",
        required=True,
        type=click.Path(dir_okay=False, path_type=Path),
        help="The trace; without --append it must not exist yet.",
    ),
    SettingOption("--append", section="Recording", is_flag=True, help="Go on with the trace that --out names."),
    SettingOption(
        "--keep-text", section="Recording", is_flag=True, help="Write what was said as it was, not in other words."
    ),
    SettingOption(
        "--max-bytes",
        section="Recording",
        type=SizeType(minimum_bytes=1 << 10, maximum_bytes=1 << 40),
        default=TRACE_BYTES,
        show_default=format_size(TRACE_BYTES),
        help="Largest size of the trace; further calls are passed on, but not written.",
    ),
    SettingOption(
        "--port",
        section="Server",
        type=IntegerRangeType(0, 65535),
        default=PORT,
        show_default=True,
        help="Port of 127.0.0.1 to listen on; 0 takes a free one.",
    ),
)

SERVER = tuple(
    option
    for option in options_of(ServerConfig, section="Server")
    if option.name in ("shutdown_seconds", "body_bytes", "connections", "request_seconds")
)
"""The settings of a server that a proxy has too."""


def run(*, upstream: str, out: Path, append: bool, keep_text: bool, max_bytes: int, config: ServerConfig) -> None:
    """Record until SIGTERM or SIGINT, then say what was written. Raises ConfigError."""
    url = server_url(upstream, flag="--upstream")
    anonymiser = None if keep_text else Anonymiser(secrets.token_bytes(KEY_BYTES))
    opened = proxy_socket(url, config, flag="--upstream")
    with opened as listener, TraceFile(out, append=append, limit_bytes=max_bytes) as file:
        take = TraceWriter(file, anonymiser=anonymiser).take
        recorder = Recorder(take, clock=time.monotonic, start_seconds=file.start_seconds)
        facts = {"trace": str(out), "text": "kept" if keep_text else "replaced"}
        pass_on(url, recorder, config, listener=listener, facts=facts)
        for line in summary(recorder, file):
            click.echo(line, err=True)


def summary(recorder: Recorder, file: TraceFile) -> list[str]:
    """How many calls were written, and why others were not."""
    written = f"{calls(recorder.taken)} written to {file.path} ({format_size(file.size_bytes)})"
    return [written, *left_out(recorder)]


def _record(**values: Any) -> None:
    """Pass agents' calls on to a server, and write them into a trace.

    Agents use this command's URL in the server's place. Calls that generate are written, each in a line. In the
    trace, words and numbers are replaced by others of the same length; structure, sizes, order, times and every
    shared beginning stay. Ctrl-C ends it.
    """
    set_up_logging("warning", "text")
    own = {option.name: values.pop(option.name) for option in RECORDING if option.name != "port"}
    limits = Limits(**{name: values.pop(name) for name in ("body_bytes", "connections", "request_seconds")})
    run(**own, config=ServerConfig(limits=limits, **values))


record = SuggestingCommand("record", callback=_record, help=_record.__doc__, params=[*RECORDING, *SERVER])
