"""Errors as Anthropic writes them."""

from __future__ import annotations

from typing import Any

from anchorline.api.errors import ApiError

PATH = "/v1/messages"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_OVERLOADED = frozenset({"cancelled", "shutting_down", "too_many_connections"})
"""Codes of errors that another try may not meet."""


def speaks_messages(path: str) -> bool:
    """Whether answers to ``path`` are in the Messages protocol."""
    return path == PATH or path.startswith(f"{PATH}/")


def error_body(error: ApiError) -> dict[str, Any]:
    """The error object that ends a stream; an answer's body also has the ``request_id``."""
    return {"type": "error", "error": {"type": _type(error), "message": error.message}}


def _type(error: ApiError) -> str:
    if error.code in _OVERLOADED:
        return "overloaded_error"
    return _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
