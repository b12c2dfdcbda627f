"""The listening socket and the run of uvicorn on it."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from anchorline.config import ServerConfig
from anchorline.errors import ConfigError
from anchorline.server.access import is_loopback_name

_BACKLOG = 2048
SHUTDOWN_SECONDS = 10
"""How long running requests may go on after SIGTERM before they are cancelled."""


def check_bind(config: ServerConfig) -> None:
    """Refuse a public address that anyone could use. Raises ConfigError."""
    config.validate()
    addresses = {str(address[0]) for _, _, _, _, address in _resolve(config)}
    if not config.api_keys and not all(is_loopback_name(address.partition("%")[0]) for address in addresses):
        raise ConfigError(
            f"--host {config.host} can be reached from other machines; give an --api-key, or keep to 127.0.0.1"
        )


def open_socket(config: ServerConfig) -> socket.socket:
    """A listening socket at --host and --port (0 takes a free one).

    Connections wait in its backlog until ``serve`` accepts them, so it may be announced at once.
    Raises ConfigError when the address is public without a key, unknown or busy.
    """
    check_bind(config)
    family, kind, protocol, _, address = _resolve(config)[0]
    # asyncio turns Nagle's delay off only where the socket says that it is TCP.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"--port {config.port} is in use on {config.host}; choose another, or 0 for any free port"
            ) from error
        raise ConfigError(f"cannot listen on --host {config.host} --port {config.port}: {error.strerror}") from error
    listener.set_inheritable(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL that a listening socket is reached at."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def make_server(app: ASGIApp, *, shutdown_seconds: int = SHUTDOWN_SECONDS) -> Server:
    """A server for ``app`` that logs no access lines of its own; run it with ``run(sockets=[…])``."""
    return Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=shutdown_seconds,
        )
    )


def serve(
    app: ASGIApp,
    config: ServerConfig,
    *,
    listener: socket.socket | None = None,
    shutdown_seconds: int = SHUTDOWN_SECONDS,
) -> None:
    """Serve ``app`` until SIGTERM or SIGINT, then let running requests end and return.

    Requests that run longer than ``shutdown_seconds`` are cancelled.

    ``listener`` is a socket from ``open_socket``; without one it is opened here.
    """
    own = listener or open_socket(config)
    try:
        make_server(app, shutdown_seconds=shutdown_seconds).run(sockets=[own])
    finally:
        own.close()


class Server(uvicorn.Server):
    """uvicorn's server, which ends with a return after a signal instead of raising it again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_Resolved = list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]]]


def _resolve(config: ServerConfig) -> _Resolved:
    host = config.host.strip("[]")
    try:
        found = socket.getaddrinfo(host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--host {config.host} is not an address of this machine: {error.strerror}") from error
    return [entry for entry in found if entry[0] in (socket.AF_INET, socket.AF_INET6)]  # type: ignore[misc]
