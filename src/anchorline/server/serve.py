"""The listening socket and the run of uvicorn on it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from anchorline.config import ServerConfig
from anchorline.errors import ConfigError
from anchorline.server.access import is_loopback_name
from anchorline.server.connection import on_loop_error, protocol_class

log = logging.getLogger("anchorline.server")

_BACKLOG = 2048
_take_no_notice = dict[int, FrameType | None]().get
"""A handler without any step of Python's, so that calls of it cannot nest. SIG_IGN would not do: of a signal
that came just before it was set, Python prints that it was ignored."""

CUT_SECONDS = 2.0
"""How long clients have to take the end of an answer when the server stops."""


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


Beside = Callable[[], Coroutine[Any, Any, None]]
"""What goes on on the event loop while a server serves; it is cancelled when the server ends."""


async def _nothing() -> None:
    """Nothing goes on beside."""


def make_server(app: ASGIApp, config: ServerConfig, *, beside: Beside = _nothing) -> Server:
    """A server for ``app`` that logs no access lines of its own; run it with ``run(sockets=[…])``."""
    return Server(
        uvicorn.Config(
            app,
            http=protocol_class(config.limits),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            # As many connections as this are accepted in one go, also while there are no file descriptors.
            backlog=1,
        ),
        shutdown_seconds=config.shutdown_seconds,
        beside=beside,
    )


def serve(
    app: ASGIApp,
    config: ServerConfig,
    *,
    listener: socket.socket,
    ready: Callable[[], None],
    beside: Beside = _nothing,
) -> None:
    """Serve ``app`` on a socket from ``open_socket`` until SIGTERM or SIGINT; then see ``Server``.

    ``ready`` is called once signals end the server in order. The handlers stay when this returns.
    """
    server = make_server(app, config, beside=beside)
    server.handle_signals()
    ready()
    server.run(sockets=[listener])


class Server(uvicorn.Server):
    """uvicorn's server, with an end in order.

    SIGTERM or SIGINT   no new connections; running calls may go on for ``shutdown_seconds``
    then                they are cancelled, which the edge and the streams answer with an error
    CUT_SECONDS later   connections whose client does not take its answer are cut
    a second SIGINT     the calls' time is over now
    a third             the process ends at once and frees nothing, since threads may still compute

    No signal raises anything, also not in what the process does after ``run``: memory that the engine's
    thread works in is freed there.
    """

    def __init__(self, config: uvicorn.Config, *, shutdown_seconds: float, beside: Beside = _nothing) -> None:
        super().__init__(config)
        self._beside = beside
        self._besides: asyncio.Task[None] | None = None
        self._shutdown_seconds = shutdown_seconds
        self._interrupts = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurry = asyncio.Event()

    def handle_signals(self) -> None:
        """Let SIGTERM and SIGINT end this server, from now until the end of the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The handler of both signals; runs on the main thread, between any two of its steps.

        That may be a step of its own. A signal that has nothing more to say therefore gets another handler:
        a flood of them would nest calls of this one until Python refuses one.
        """
        first, self.should_exit = not self.should_exit, True
        if sig == signal.SIGTERM:
            signal.signal(sig, _take_no_notice)
        elif not first:
            self._interrupts += 1
            if self._interrupts == 1:
                self.hurry()
            else:
                signal.signal(sig, _take_no_notice)
                os.write(2, b"stopped by a third signal: nothing was waited for\n")
                os._exit(128 + sig)

    def hurry(self) -> None:
        """End the calls that still run; for any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: there are none
                self._loop.call_soon_threadsafe(self._hurry.set)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # what ``handle_signals`` set stays, also when the loop has ended

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(on_loop_error)
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # asyncio has set it to uvicorn's
        self._besides = asyncio.create_task(self._beside())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if running := len(self.server_state.tasks):
            log.info(
                "stopping; running calls: %d, which have %g s more; another SIGINT (Ctrl-C) ends them now",
                *(running, self._shutdown_seconds),
            )
        if self._besides is not None:
            self._besides.cancel()
        ending = asyncio.create_task(self._end_calls())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_calls(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), self._shutdown_seconds)
        for task in self.server_state.tasks:
            task.cancel()
        await asyncio.sleep(CUT_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


_Resolved = list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]]]


def _resolve(config: ServerConfig) -> _Resolved:
    host = config.host.strip("[]")
    try:
        found = socket.getaddrinfo(host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--host {config.host} is not an address of this machine: {error.strerror}") from error
    return [entry for entry in found if entry[0] in (socket.AF_INET, socket.AF_INET6)]  # type: ignore[misc]
