"""JSON responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from anchorline.api.errors import ApiError

SHUTTING_DOWN = ApiError(
    status=503,
    message="the server is shutting down",
    type="server_error",
    code="shutting_down",
    headers={"connection": "close"},
)
"""The answer to a call that the end of the server cuts short."""


def json_response(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``body`` (structs, dicts, lists) as JSON."""
    return Response(
        msgspec.json.encode(body), status_code=status, headers=dict(headers or {}), media_type="application/json"
    )


def error_response(error: ApiError) -> Response:
    """An OpenAI error object."""
    body: dict[str, Any] = error.body()
    return json_response(body, status=error.status, headers=error.headers)
