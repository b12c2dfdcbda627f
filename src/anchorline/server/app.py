"""The application: routes and the layers around them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from anchorline.errors import AnchorlineError
from anchorline.server.access import AccessGuard
from anchorline.server.anchors import AnchorRoutes
from anchorline.server.edge import Edge, on_anchorline_error, on_client_disconnect, on_http_error
from anchorline.server.explain import ExplainRoutes
from anchorline.server.generate import generation_endpoint
from anchorline.server.messages import count_tokens_endpoint, prepare_messages
from anchorline.server.openai_responses import ResponseRoutes, prepare_response
from anchorline.server.prepare import prepare_chat, prepare_completion
from anchorline.server.routes import Routes
from anchorline.server.sealing import Attendance, Sealer
from anchorline.server.state import ServerState


def build_app(state: ServerState) -> Starlette:
    """The ASGI application of one server; everything it uses is in ``state``."""
    sealer = Sealer(state) if state.sealed_turns else None
    routes = _routes(state, sealer)
    endpoints = frozenset(route.path for route in routes)
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Edge, metrics=state.metrics, endpoints=endpoints, new_id=state.new_id),
            Middleware(AccessGuard, config=state.config),
            *([] if sealer is None else [Middleware(Attendance, sealer=sealer)]),
        ],
        exception_handlers={
            AnchorlineError: on_anchorline_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_client_disconnect,
        },
    )
    app.router.redirect_slashes = False  # a redirect would repeat a Host header that a proxy has set
    return app


def _routes(state: ServerState, sealer: Sealer | None) -> list[Route]:
    """Paths as OpenAI and Anthropic have them, OpenAI's also without /v1 as llama-server has them too, and its own.

    What LM Studio and vLLM are recognised by (/api/v1/models, /version) is left unknown on purpose:
    agents would go on to use those servers' own calls.
    """
    rest = Routes(state)
    responses = ResponseRoutes(state)
    anchors = AnchorRoutes(state)
    explain = ExplainRoutes(state)
    create_response = generation_endpoint(state, prepare_response, sealer)
    chat = generation_endpoint(state, prepare_chat, sealer)
    completion = generation_endpoint(state, prepare_completion, sealer)
    return [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completion, methods=["POST"]),
        Route("/completions", completion, methods=["POST"]),
        Route("/v1/messages", generation_endpoint(state, prepare_messages, sealer), methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens_endpoint(state), methods=["POST"]),
        Route("/v1/responses", create_response, methods=["POST"]),
        Route("/responses", create_response, methods=["POST"]),
        Route("/v1/responses/{id}", responses.retrieve, methods=["GET"]),
        Route("/v1/responses/{id}", responses.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", responses.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", responses.input_items, methods=["GET"]),
        Route("/v1/models", rest.models, methods=["GET"]),
        Route("/models", rest.models, methods=["GET"]),
        Route("/api/tags", rest.models, methods=["GET"]),
        Route("/v1/models/{name:path}", rest.model, methods=["GET"]),
        Route("/health", rest.health, methods=["GET"]),
        Route("/v1/health", rest.health, methods=["GET"]),
        Route("/props", rest.props, methods=["GET"]),
        Route("/v1/props", rest.props, methods=["GET"]),
        Route("/api/show", rest.show, methods=["POST"]),
        Route("/metrics", rest.metrics, methods=["GET"]),
        Route("/cache", anchors.statistics, methods=["GET"]),
        Route("/cache/anchors", anchors.index, methods=["GET"]),
        Route("/cache/anchors", anchors.create, methods=["POST"]),
        Route("/cache/anchors/{id}", anchors.change, methods=["PATCH"]),
        Route("/cache/anchors/{id}", anchors.delete, methods=["DELETE"]),
        Route("/cache/clear", anchors.clear, methods=["POST"]),
        Route("/cache/explain", explain.plan, methods=["POST"]),
        Route("/cache/requests", explain.index, methods=["GET"]),
        Route("/tokenize", rest.tokenize, methods=["POST"]),
        Route("/detokenize", rest.detokenize, methods=["POST"]),
        Route("/apply-template", rest.apply_template, methods=["POST"]),
    ]
