"""The outermost layer: counts and names responses, and turns what nobody caught into a 500."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anchorline.api.errors import ApiError, api_error
from anchorline.errors import AnchorlineError
from anchorline.metrics.metrics import Metrics
from anchorline.server.log import log_error
from anchorline.server.responses import INTERNAL_ERROR, REQUEST_ID, SHUTTING_DOWN, error_response, speaks_anthropic

logger = logging.getLogger("anchorline.server")

_UNKNOWN = "other"
"""Endpoint label of paths that are not served, so that clients cannot grow the metric."""


class Edge:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: Metrics, endpoints: frozenset[str], new_id: Callable[[], str]) -> None:
        self._app = app
        self._metrics = metrics
        self._endpoints = endpoints
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None
        if speaks_anthropic(scope):
            scope[REQUEST_ID] = f"req_{self._new_id()}"

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if REQUEST_ID in scope:
                    MutableHeaders(scope=message)["request-id"] = scope[REQUEST_ID]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        except asyncio.CancelledError:  # the server ends and this request did not, in all the time it had
            if status is None:
                await error_response(SHUTTING_DOWN, scope)(scope, receive, send_noting_status)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if status is None:
                await error_response(INTERNAL_ERROR, scope)(scope, receive, send_noting_status)
        finally:
            endpoint = scope["path"] if scope["path"] in self._endpoints else _UNKNOWN
            self._metrics.count_request(endpoint=endpoint, status=status or 499)


async def on_anchorline_error(request: Request, error: Exception) -> Response:
    """Answer an error raised on purpose."""
    assert isinstance(error, AnchorlineError)
    return _answer(request, api_error(error))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    if error.status_code == 404:
        doubled = "; the client's base URL must not end in /v1" if path.startswith("/v1/v1/") else ""
        message = f"unknown path: {method} {path}{doubled}"
        return _answer(request, ApiError(status=404, message=message, code="not_found"))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        message = f"{path} does not take {method}"
        return _answer(request, ApiError(status=405, message=message, code="method_not_allowed", headers=headers))
    return _answer(request, ApiError(status=error.status_code, message=error.detail, headers=headers))


async def on_client_disconnect(request: Request, error: Exception) -> Response:
    """The client left while its body was read: nobody reads the answer."""
    return Response(status_code=499)


def _answer(request: Request, error: ApiError) -> Response:
    log_error(error, request.scope)
    return error_response(error, request.scope)
