"""The application: routes and the layers around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from anchorline.config import ServerConfig
from anchorline.errors import AnchorlineError
from anchorline.metrics.metrics import Metrics
from anchorline.server.access import AccessGuard
from anchorline.server.anchors import AnchorRoutes
from anchorline.server.edge import Edge, on_anchorline_error, on_client_disconnect, on_http_error
from anchorline.server.explain import ExplainRoutes
from anchorline.server.generate import Endpoint, generation_endpoint
from anchorline.server.messages import count_tokens_endpoint, prepare_messages
from anchorline.server.openai_responses import ResponseRoutes, prepare_response
from anchorline.server.prepare import prepare_chat, prepare_completion
from anchorline.server.routes import Routes
from anchorline.server.sealing import Attendance, Sealer
from anchorline.server.state import ServerState

ENDPOINTS: Sequence[tuple[str, str, str]] = (
    ("POST", "/v1/chat/completions", "chat"),
    ("POST", "/chat/completions", "chat"),
    ("POST", "/v1/completions", "completion"),
    ("POST", "/completions", "completion"),
    ("POST", "/v1/messages", "messages"),
    ("POST", "/v1/messages/count_tokens", "count_tokens"),
    ("POST", "/v1/responses", "response"),
    ("POST", "/responses", "response"),
    ("GET", "/v1/responses/{id}", "responses.retrieve"),
    ("DELETE", "/v1/responses/{id}", "responses.delete"),
    ("POST", "/v1/responses/{id}/cancel", "responses.cancel"),
    ("GET", "/v1/responses/{id}/input_items", "responses.input_items"),
    ("GET", "/v1/models", "rest.models"),
    ("GET", "/models", "rest.models"),
    ("GET", "/api/tags", "rest.models"),
    ("GET", "/v1/models/{name:path}", "rest.model"),
    ("GET", "/health", "rest.health"),
    ("GET", "/v1/health", "rest.health"),
    ("GET", "/props", "rest.props"),
    ("GET", "/v1/props", "rest.props"),
    ("POST", "/api/show", "rest.show"),
    ("GET", "/metrics", "rest.metrics"),
    ("GET", "/cache", "anchors.statistics"),
    ("GET", "/cache/anchors", "anchors.index"),
    ("POST", "/cache/anchors", "anchors.create"),
    ("PATCH", "/cache/anchors/{id}", "anchors.change"),
    ("DELETE", "/cache/anchors/{id}", "anchors.delete"),
    ("POST", "/cache/clear", "anchors.clear"),
    ("POST", "/cache/explain", "explain.plan"),
    ("GET", "/cache/requests", "explain.index"),
    ("POST", "/tokenize", "rest.tokenize"),
    ("POST", "/detokenize", "rest.detokenize"),
    ("POST", "/apply-template", "rest.apply_template"),
)
"""Method, path and handler, by its name in ``Handlers``.

Paths are as OpenAI and Anthropic have them, OpenAI's also without /v1 as llama-server has them too, and its own. What
LM Studio and vLLM are recognised by (/api/v1/models, /version) is left unknown on purpose: agents would go on to use
those servers' own calls.
"""


class Handlers:
    """The handlers of one model, bound to its state."""

    def __init__(self, state: ServerState, sealer: Sealer | None) -> None:
        self.rest = Routes(state)
        self.responses = ResponseRoutes(state)
        self.anchors = AnchorRoutes(state)
        self.explain = ExplainRoutes(state)
        self.chat = generation_endpoint(state, prepare_chat, sealer)
        self.completion = generation_endpoint(state, prepare_completion, sealer)
        self.messages = generation_endpoint(state, prepare_messages, sealer)
        self.count_tokens = count_tokens_endpoint(state)
        self.response = generation_endpoint(state, prepare_response, sealer)

    def routes(self) -> list[Route]:
        """All of ``ENDPOINTS``."""
        return [Route(path, self.find(name), methods=[method]) for method, path, name in ENDPOINTS]

    def find(self, name: str) -> Endpoint:
        handler: Endpoint = attrgetter(name)(self)
        return handler


def build_app(state: ServerState) -> Starlette:
    """The ASGI application of a server with one model; everything it uses is in ``state``."""
    sealer = _sealer(state)
    attendance = [] if sealer is None else [Middleware(Attendance, sealer=sealer)]
    routes = Handlers(state, sealer).routes()
    return layered(routes, state.config, metrics=state.metrics, new_id=state.new_id, inner=attendance)


def _sealer(state: ServerState) -> Sealer | None:
    return Sealer(state) if state.sealed_turns else None


def layered(
    routes: Sequence[BaseRoute],
    config: ServerConfig,
    *,
    metrics: Metrics,
    new_id: Callable[[], str],
    inner: Sequence[Middleware] = (),
) -> Starlette:
    """``routes`` within the layers that every server has around them; ``inner`` lies within those."""
    endpoints = frozenset(path for _, path, _ in ENDPOINTS)
    app = Starlette(
        routes=list(routes),
        middleware=[
            Middleware(Edge, metrics=metrics, endpoints=endpoints, new_id=new_id),
            Middleware(AccessGuard, config=config),
            *inner,
        ],
        exception_handlers={
            AnchorlineError: on_anchorline_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_client_disconnect,
        },
    )
    app.router.redirect_slashes = False  # a redirect would repeat a Host header that a proxy has set
    return app


class ModelApp:
    """The endpoints of one of several models, an ASGI application within ``layered``."""

    def __init__(self, state: ServerState) -> None:
        self._sealer = _sealer(state)
        router: ASGIApp = Router(Handlers(state, self._sealer).routes(), redirect_slashes=False)
        self._app = router if self._sealer is None else Attendance(router, self._sealer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def close(self) -> None:
        """End what goes on beside the requests; none may come any more."""
        if self._sealer is not None:
            await self._sealer.close()
