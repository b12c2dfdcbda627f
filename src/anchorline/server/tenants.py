"""Whose a call is: nothing that was computed or remembered for one tenant serves, or shows in, another's calls.

What clients said and were told is kept apart by the key that they present, asked for or not (``tenant_of``). The
cache is kept apart by key only where several are given out: agents of one person send whatever key they like, and
shall share. A ``cache_salt`` keeps both apart further.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from starlette.requests import Request

from anchorline.api.options import check_cache_salt
from anchorline.cache.prompt import DEFAULT_TENANT, Prompt
from anchorline.config import ServerConfig
from anchorline.server.caller import tenant_of


def salted(tenant: str, salt: str | None) -> str:
    """The tenant of those of ``tenant`` who send ``salt``, or none; where it has no salt it is ``tenant`` itself."""
    if salt is None:
        return tenant
    return hashlib.sha256(f"{tenant}\0{salt}".encode()).hexdigest()


def cache_tenant(key_tenant: str, salt: str | None, *, config: ServerConfig) -> str:
    """Whose cached prefixes a call shares; ``key_tenant`` is that of the key it presents."""
    keyed = len(set(config.api_keys)) > 1
    return salted(key_tenant if keyed else DEFAULT_TENANT, salt)


def asking_tenant(request: Request, config: ServerConfig) -> str:
    """Whose cache a request without a prompt is about; its salt is in the query. Raises RequestError."""
    salt = check_cache_salt(request.query_params.get("cache_salt"), limits=config.limits)
    return cache_tenant(tenant_of(request, config), salt, config=config)


def owned(prompt: Prompt, key_tenant: str, salt: str | None, *, config: ServerConfig) -> Prompt:
    """``prompt`` as its tenant's, but for a head that ``--share-heads`` makes common to all."""
    shared = bool(config.share_heads) and prompt.head_digest in config.share_heads
    return replace(
        prompt,
        tenant=cache_tenant(key_tenant, salt, config=config),
        common_tokens=(prompt.head_position or 0) if shared else 0,
    )
