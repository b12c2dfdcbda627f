"""JSON responses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from anchorline.api import messages_errors
from anchorline.api.errors import ApiError, api_error
from anchorline.errors import AnchorlineError

MODELS_PATHS = ("/v1/models", "/models", "/api/tags")
"""Where models are listed, for clients of every protocol; one of them has its name behind the first."""

REQUEST_ID = "anchorline.request_id"
"""Key in the scope of the id that an answer in Anthropic's words names in its ``request-id`` header and its errors."""

SHUTTING_DOWN = ApiError(
    status=503,
    message="the server is shutting down",
    type="server_error",
    code="shutting_down",
    headers={"connection": "close"},
)
"""The answer to a call that the end of the server cuts short."""
INTERNAL_ERROR = ApiError(status=500, message="internal error", type="server_error", code="internal_error")
"""The answer where something went wrong that nobody foresaw."""


def failure(error: BaseException) -> ApiError:
    """The answer to a request that ended with ``error``."""
    if isinstance(error, AnchorlineError):
        return api_error(error)
    return SHUTTING_DOWN if isinstance(error, asyncio.CancelledError) else INTERNAL_ERROR


def json_response(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``body`` (structs, dicts, lists) as JSON."""
    return Response(
        msgspec.json.encode(body), status_code=status, headers=dict(headers or {}), media_type="application/json"
    )


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is answered in Anthropic's words: by its path or, of models, when it names their version."""
    path: str = scope["path"]
    is_of_models = path in MODELS_PATHS or path.startswith(f"{MODELS_PATHS[0]}/")
    return messages_errors.speaks_messages(path) or (is_of_models and "anthropic-version" in Headers(scope=scope))


def error_response(error: ApiError, scope: Scope) -> Response:
    """An error in the shape of the protocol that the request speaks."""
    body: dict[str, Any] = error.body()
    if speaks_anthropic(scope):
        body = messages_errors.error_body(error) | {"request_id": scope.get(REQUEST_ID)}
    return json_response(body, status=error.status, headers=error.headers)
