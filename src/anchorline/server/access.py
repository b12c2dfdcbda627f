"""Who may talk to the server: Host and Origin checks, CORS, API keys.

A page in the user's browser must not reach a local server: not by a name that an attacker points
at 127.0.0.1 (DNS rebinding; the Host check) and not from a page of another origin (the Origin check).
"""

from __future__ import annotations

import ipaddress
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anchorline.api.errors import ApiError
from anchorline.config import ServerConfig
from anchorline.server.caller import is_admitted
from anchorline.server.log import log_error
from anchorline.server.responses import error_response

OPEN_PATHS = frozenset({"/health"})
"""Answered without a key, for health probes."""

_HTTP_PORT = 80
_AUTHORITY = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::(?P<port>[0-9]{0,5}))?")


def split_host(value: str) -> tuple[str, int | None] | None:
    """The lower-case name and the port (None: not given) in a Host header; None when it is malformed.

    The name has no brackets and no dot at its end. Only a whole header counts: whatever stands around
    a good name (``[::1].evil.example``, ``localhost:80@evil.example``) was put there to deceive.
    """
    value = value.lower()
    if isinstance(_address(value), ipaddress.IPv6Address) and "%" not in value:
        return value, None  # without the brackets it should have; there can be no port
    found = _AUTHORITY.fullmatch(value)
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else None
    if port is not None and port > 65535:
        return None
    if found["address"] is not None:
        return (found["address"], port) if isinstance(_address(found["address"]), ipaddress.IPv6Address) else None
    name = found["name"].removesuffix(".")
    return (name, port) if all(name.split(".")) else None


def is_loopback_name(name: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class AccessGuard:
    """ASGI middleware that lets through only what the configuration allows."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._bound = config.host.lower().strip("[]").removesuffix(".")
        self._hosts = frozenset(host.strip().lower() for host in config.allowed_hosts)
        self._origins = frozenset(origin.strip().lower().rstrip("/") for origin in config.allowed_origins)
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        refusal = self._check_host(headers) or self._check_origins(headers)
        if refusal is None and origin is not None:
            send = _with_cors(send, origin)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await _preflight(headers)(scope, receive, send)
                return
        if refusal is None and scope["path"] not in OPEN_PATHS:
            refusal = self._check_key(headers)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        log_error(refusal, scope)
        await error_response(refusal, scope)(scope, receive, send)

    def allows_host(self, value: str) -> bool:
        """Whether a Host header may be answered.

        A server bound to a public address also answers to addresses: rebinding needs a name.
        """
        host = split_host(value)
        if host is None:
            return False
        name, _ = host
        if is_loopback_name(name) or name == self._bound:
            return True
        if "*" in self._hosts or name in self._hosts or value.lower() in self._hosts:
            return True
        return _address(name) is not None and not is_loopback_name(self._bound)

    def allows_origin(self, origin: str, *, host: str) -> bool:
        """Whether a page of ``origin`` may use this server, which it addresses as ``host``.

        The server's own origin is plain HTTP; behind a proxy that speaks TLS it has to be allowed.
        """
        origin = origin.lower()
        if "*" in self._origins or origin.rstrip("/") in self._origins:
            return True
        scheme, separator, authority = origin.partition("://")
        page, own = split_host(authority), split_host(host)
        if scheme != "http" or not separator or page is None or own is None:
            return False
        return (page[0], page[1] or _HTTP_PORT) == (own[0], own[1] or _HTTP_PORT)

    def _check_host(self, headers: Headers) -> ApiError | None:
        given = headers.getlist("host")
        if len(given) == 1 and self.allows_host(given[0]):
            return None
        shown = given[0][:100] if given else "none"
        return _forbidden(f"host {shown!r} is not served (--allowed-host)", code="host_not_allowed")

    def _check_origins(self, headers: Headers) -> ApiError | None:
        for origin in headers.getlist("origin"):
            if not self.allows_origin(origin, host=headers.get("host", "")):
                return _forbidden(
                    f"origin {origin[:100]!r} is not allowed (--allowed-origin)", code="origin_not_allowed"
                )
        return None

    def _check_key(self, headers: Headers) -> ApiError | None:
        if is_admitted(headers, self._config):
            return None
        return ApiError(
            status=401,
            message="a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


def _forbidden(message: str, *, code: str) -> ApiError:
    return ApiError(status=403, message=message, type="permission_error", code=code)


def _with_cors(send: Send, origin: str) -> Send:
    """Let the page of an allowed origin read the response."""

    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers.add_vary_header("origin")
        await send(message)

    return send_with_cors


def _preflight(headers: Headers) -> Response:
    answer = {
        "access-control-allow-methods": "GET, POST, PATCH, DELETE, OPTIONS",
        "access-control-allow-headers": headers.get("access-control-request-headers", "authorization, content-type"),
        "access-control-max-age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        answer["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=answer)
