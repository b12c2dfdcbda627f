"""Who sent a request, and when."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request

from anchorline.config import ServerConfig

SWITCH_SECONDS = "anchorline.switch_seconds"
"""Of an ASGI scope: how long the request has waited for its model to be loaded, before its endpoint was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a request is besides its body."""

    received_seconds: float
    """Monotonic time at which it came; the zero of TTFT."""
    switch_seconds: float = 0.0
    """How long it has waited since then for its model to be loaded."""
    tenant: str
    """Clients of one tenant may see what was made for the others of it; see ``tenant_of``."""
    generates: bool = True
    """Whether it gets a reply that its conversation goes on behind; not where a call is only planned."""


def caller_of(request: Request, config: ServerConfig, *, now: float, generates: bool = True) -> Caller:
    """The caller of a request that has come to its endpoint ``now``."""
    waited = request.scope.get(SWITCH_SECONDS, 0.0)
    return Caller(
        received_seconds=now - waited, switch_seconds=waited, tenant=tenant_of(request, config), generates=generates
    )


def tenant_of(request: Request, config: ServerConfig) -> str:
    """A digest of the key that lets a client in or, where none is asked for, of the one it presents; hexadecimal."""
    given = given_keys(request.headers)
    accepted = accepted_keys(given, [key.encode() for key in config.api_keys])
    return tenant_with(next(iter(accepted or given), b""))


def tenant_with(key: bytes) -> str:
    """The tenant of those who present ``key``; b"" is no key."""
    return hashlib.sha256(key).hexdigest()


def is_admitted(headers: Headers, config: ServerConfig) -> bool:
    """Whether a request with these headers shows a key that lets it in, or needs none."""
    keys = [key.encode() for key in config.api_keys]
    return not keys or bool(accepted_keys(given_keys(headers), keys))


def given_keys(headers: Headers) -> list[bytes]:
    """The keys that a request shows, as OpenAI's clients do or as Anthropic's do."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = [token] if scheme.lower() == "bearer" else []
    if "x-api-key" in headers:
        given.append(headers["x-api-key"])
    return [key.encode("latin-1") for key in given]  # headers are decoded as latin-1


def accepted_keys(given: Sequence[bytes], keys: Sequence[bytes]) -> list[bytes]:
    """Those of the ``given`` that are among ``keys``.

    Every key is compared, so that the time taken tells nothing about which one is near.
    """
    return [shown for shown in given if sum(hmac.compare_digest(shown, key) for key in keys)]
