"""What the commands have in common that stand between agents and a server."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from anchorline.cli.banner import announce
from anchorline.config import ServerConfig
from anchorline.record.proxy import check_no_loop, recording_app
from anchorline.record.recorder import Recorder
from anchorline.server.serve import open_socket, serve, url_of

PORT = 8090


@contextmanager
def proxy_socket(upstream: httpx.URL, config: ServerConfig, *, flag: str) -> Iterator[socket.socket]:
    """A socket to listen on, which is not the upstream's. Raises ConfigError naming ``flag``, the upstream's."""
    with open_socket(config) as listener:
        check_no_loop(upstream, listener, flag=flag)
        yield listener


def pass_on(
    upstream: httpx.URL,
    recorder: Recorder,
    config: ServerConfig,
    *,
    listener: socket.socket,
    facts: Mapping[str, str],
    patience_seconds: float | None = None,
) -> bool:
    """Pass calls on until SIGTERM or SIGINT, then close the recorder; gives what ``Recorder.close`` gives."""
    shown = {"upstream": str(upstream), **facts, "url": url_of(listener)}
    try:
        serve(recording_app(upstream, recorder, config), config, listener=listener, ready=lambda: announce(shown))
    finally:
        through = recorder.close(patience_seconds)
    return through


def calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def left_out(recorder: Recorder) -> list[str]:
    """How many calls were not taken, by reason."""
    return [f"{calls(count)} left out: {reason}" for reason, count in recorder.left_out.most_common()]
