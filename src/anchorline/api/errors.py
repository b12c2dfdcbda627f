"""Errors as OpenAI writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anchorline.errors import (
    AnchorlineError,
    BodyTooLarge,
    Cancelled,
    Conflict,
    EngineFailure,
    NotFound,
    QueueFull,
    RequestError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """One error reply: status, headers and the members of OpenAI's error object."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    """Members of the error object beside OpenAI's."""

    def body(self) -> dict[str, Any]:
        told = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**told, **self.details}}


def api_error(error: AnchorlineError) -> ApiError:
    """The reply to an error raised on purpose."""
    message = str(error)
    if isinstance(error, BodyTooLarge):
        return ApiError(status=413, message=message, code="body_too_large")
    if isinstance(error, NotFound):
        return ApiError(status=404, message=message, param=error.field, code=error.code)
    if isinstance(error, Conflict):
        return ApiError(status=409, message=message, type="conflict_error", code=error.code, details=error.details)
    if isinstance(error, RequestError):
        return ApiError(status=400, message=message, param=error.field, code=error.code)
    if isinstance(error, QueueFull):
        wait = {"retry-after": str(max(1, error.retry_after_seconds))}
        return ApiError(status=429, message=message, type="rate_limit_error", code="queue_full", headers=wait)
    if isinstance(error, EngineFailure):
        return ApiError(status=503, message=message, type="server_error", code="engine_failure")
    if isinstance(error, Cancelled):
        return ApiError(
            status=503, message=message or "the request was cancelled", type="server_error", code="cancelled"
        )
    return ApiError(status=500, message=message, type="server_error", code="internal_error")
