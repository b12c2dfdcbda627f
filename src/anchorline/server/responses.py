"""JSON responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from anchorline.api.errors import ApiError


def json_response(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``body`` (structs, dicts, lists) as JSON."""
    return Response(
        msgspec.json.encode(body), status_code=status, headers=dict(headers or {}), media_type="application/json"
    )


def error_response(error: ApiError) -> Response:
    """An OpenAI error object."""
    body: dict[str, Any] = error.body()
    return json_response(body, status=error.status, headers=error.headers)
