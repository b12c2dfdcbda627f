"""Who sent a request, and when."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from starlette.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a request is besides its body."""

    received_seconds: float
    """Monotonic time at which it came; the zero of TTFT."""
    tenant: str
    """Clients of one tenant may see what was made for the others of it; see ``tenant_of``."""


def tenant_of(request: Request) -> str:
    """A digest of the key that a client presents, whether keys are asked for or not; hexadecimal."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    return hashlib.sha256(key.encode("latin-1")).hexdigest()  # headers are decoded as latin-1
