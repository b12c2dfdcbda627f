"""A proxy between agents and a server: passes everything on, and notes the calls that generate."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import Coroutine, Iterable
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from anchorline.api.errors import ApiError
from anchorline.bench.trace import SHOWN_CHARACTERS, has_dot_segment
from anchorline.config import ServerConfig
from anchorline.errors import AnchorlineError, ConfigError, RequestError
from anchorline.limits import Limits
from anchorline.record.recorder import TRACE_PATHS, UNANSWERED, Recorder
from anchorline.server.access import AccessGuard
from anchorline.server.body import read_body
from anchorline.server.edge import on_anchorline_error, on_client_disconnect, on_http_error
from anchorline.server.responses import SHUTTING_DOWN, error_response

logger = logging.getLogger("anchorline.record")

RawHeaders = list[tuple[bytes, bytes]]

CONNECT_SECONDS = 10.0
DEFAULT_PORTS = {"http": 80, "https": 443}
OWN_HEADERS = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
"""Headers that speak of one connection, not of a call (RFC 9110, 7.6.1)."""


def check_no_loop(upstream: httpx.URL, listener: socket.socket, *, flag: str = "--upstream") -> None:
    """Refuse an upstream that is the proxy itself, where each call would go round for ever. Raises ConfigError."""
    host, port = listener.getsockname()[:2]
    if (upstream.port or DEFAULT_PORTS[upstream.scheme]) != port:
        return
    try:
        found = socket.getaddrinfo(upstream.host, port, type=socket.SOCK_STREAM)
    except OSError:
        return  # the calls will tell that there is no such host
    if any(_same_machine(str(address[0]), host) for *_, address in found):
        raise ConfigError(f"{flag} {upstream} is where this command itself listens; choose another --port")


def _same_machine(address: str, listening: str) -> bool:
    """Whether who connects to ``address`` gets to ``listening``; an unspecified address is this machine, too."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return ip.is_unspecified or ip == ipaddress.ip_address(listening)


def recording_app(upstream: httpx.URL, recorder: Recorder, config: ServerConfig) -> Starlette:
    """The ASGI application of a recording; pages of a browser do not reach it."""
    return Starlette(
        routes=[Route("/{path:path}", Proxy(upstream, recorder, limits=config.limits))],
        middleware=[Middleware(AccessGuard, config=config)],
        exception_handlers={
            AnchorlineError: on_anchorline_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_client_disconnect,
        },
    )


class Proxy:
    """Sends each request on and its answer back, byte for byte as they come.

    A body is read whole first. When the client leaves, the upstream's connection is closed, and when the upstream
    breaks off, the client's. Each call has a connection of its own.
    """

    def __init__(self, upstream: httpx.URL, recorder: Recorder, *, limits: Limits) -> None:
        self._upstream = upstream
        self._recorder = recorder
        self._limits = limits
        self._tls = httpx.create_ssl_context()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check_target(scope["raw_path"].decode("latin-1"))
        body = await read_body(Request(scope, receive), limits=self._limits)
        recorded = scope["method"] == "POST" and scope["path"] in TRACE_PATHS
        call = self._recorder.begin(scope["path"], body) if recorded else None
        answer = Answer(send, self._tls)
        try:
            await _while_connected(receive, answer.fetch(self._request(scope, body)))
        except (httpx.RequestError, httpx.InvalidURL) as error:
            answer.broken_off = True
            logger.warning("upstream %s: %s", self._upstream, _reason(error))
            if not answer.started:
                await error_response(self._unreachable(error), scope)(scope, receive, send)
        except asyncio.CancelledError:  # the recording ends and this call did not, in all the time it had
            if not answer.started:
                await error_response(SHUTTING_DOWN, scope)(scope, receive, send)
        finally:
            if call is not None:
                self._recorder.end(call, refusal=answer.refusal)

    def _request(self, scope: Scope, body: bytes) -> httpx.Request:
        target: bytes = self._upstream.raw_path.rstrip(b"/") + scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        url = self._upstream.copy_with(raw_path=target)
        headers = passed_on(scope["headers"], besides=(b"host", b"content-length", b"expect"))
        return httpx.Request(scope["method"], url, headers=headers, content=body)

    def _unreachable(self, error: Exception) -> ApiError:
        return ApiError(
            status=httpx.codes.BAD_GATEWAY,
            message=f"the upstream {self._upstream} gave no answer: {_reason(error)}",
            type="server_error",
            code="upstream_unreachable",
        )


def _check_target(path: str) -> None:
    """Raises RequestError for a path that would reach the upstream as another one."""
    if has_dot_segment(path) or "#" in path:
        raise RequestError(f"the path {path[:SHOWN_CHARACTERS]!a} must have no '.', no '..' and no '#' part")


class Answer:
    """The upstream's answer to one request on its way to the client."""

    def __init__(self, send: Send, tls: ssl.SSLContext) -> None:
        self._send = send
        self._tls = tls
        self.status: int | None = None
        self.started = False
        self.broken_off = False
        """Whether the upstream never answered, or not to the end."""

    @property
    def refusal(self) -> str | None:
        """Why the call was not served; None when it was, or when the client left before."""
        if self.broken_off:
            return UNANSWERED
        if self.status is None or httpx.codes.is_success(self.status):
            return None
        return f"the upstream refused the call with status {self.status}"

    async def fetch(self, request: httpx.Request) -> None:
        """Send the request and pass on what comes. Raises httpx.RequestError."""
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        async with httpx.AsyncClient(verify=self._tls, timeout=timeout, trust_env=False) as client:
            # A request of one's own gets no headers from the client.
            response = await client.send(request, stream=True)
            async with contextlib.aclosing(response):
                await self._pass_on(response)

    async def _pass_on(self, response: httpx.Response) -> None:
        if not 200 <= response.status_code <= 599:
            raise httpx.RemoteProtocolError(f"its status is {response.status_code}")
        self.status, self.started = response.status_code, True
        headers = passed_on(response.headers.raw, besides=(b"date",))  # the client's connection dates answers
        await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        async for part in response.aiter_raw():
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body"})


def passed_on(headers: Iterable[tuple[bytes, bytes]], *, besides: Iterable[bytes] = ()) -> RawHeaders:
    """The headers that belong to the call and not to its connection, less those named ``besides``."""
    given = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in given if name == b"connection" for part in value.split(b",")}
    # A length beside chunks does not count (RFC 9112, 6.3); without the chunks it would.
    untrue: set[bytes] = {b"content-length"} if any(name == b"transfer-encoding" for name, _ in given) else set()
    dropped = OWN_HEADERS | named | untrue | set(besides)
    return [(name, value) for name, value in given if name not in dropped]


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do ``work``, or the part of it until the client leaves; it has ended, and cleaned up, when this returns."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, leaving):
            task.cancel()
        results = await asyncio.gather(working, leaving, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
