"""The application of a server with several models: each request goes to the endpoints of the model that it names."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from anchorline.api.models import (
    Listed,
    listed_anthropic_model,
    listed_anthropic_models,
    listed_model,
    listed_models,
)
from anchorline.config import ServerConfig
from anchorline.metrics.metrics import CONTENT_TYPE, Metrics
from anchorline.server.app import ENDPOINTS, layered
from anchorline.server.body import read_body
from anchorline.server.generate import Endpoint
from anchorline.server.leaving import while_connected
from anchorline.server.responses import json_response
from anchorline.server.routes import engine_health, speaks_anthropic
from anchorline.server.switch import ModelSwitch


def build_switching_app(
    switch: ModelSwitch, config: ServerConfig, *, metrics: Metrics, new_id: Callable[[], str], created: int
) -> Starlette:
    """The ASGI application of a server whose models take turns; ``created`` is when it started."""
    own = SwitchRoutes(switch, metrics, created=created)
    answered: dict[str, Endpoint] = {
        "rest.models": own.models,
        "rest.model": own.model,
        "rest.health": own.health,
        "rest.metrics": own.metrics,
    }
    dispatch = Dispatch(switch, config)
    routes = [Route(path, answered.get(name, dispatch), methods=[method]) for method, path, name in ENDPOINTS]
    return layered(routes, config, metrics=metrics, new_id=new_id)


class SwitchRoutes:
    """What is answered at once, whatever is loaded."""

    def __init__(self, switch: ModelSwitch, metrics: Metrics, *, created: int) -> None:
        """``created`` is when the server started, in Unix seconds."""
        self._switch = switch
        self._metrics = metrics
        self._created = created

    async def health(self, request: Request) -> Response:
        """200 as long as models can be loaded; of the loaded one what a server with it alone would tell."""
        loaded = self._switch.loaded
        detail = {} if loaded is None or not loaded.engine.alive else engine_health(loaded.engine.stats())
        statuses = {listed.name: listed.status for listed in self._listed()}
        return json_response({"status": "ok", **detail, "models": statuses, "waiting": self._switch.waiting})

    async def models(self, request: Request) -> Response:
        shown = listed_anthropic_models if speaks_anthropic(request) else listed_models
        return json_response(shown(self._listed()))

    async def model(self, request: Request) -> Response:
        name = self._switch.name_of(request.path_params["name"])
        shown = listed_anthropic_model if speaks_anthropic(request) else listed_model
        return json_response(next(shown(listed) for listed in self._listed() if listed.name == name))

    async def metrics(self, request: Request) -> Response:
        """The engine's are those of the loaded model."""
        return Response(self._metrics.exposition(), headers={"content-type": CONTENT_TYPE})

    def _listed(self) -> list[Listed]:
        return [
            Listed(name=name, status=self._switch.status(name).value, created=self._created, served=served)
            for name, served in self._switch.served.items()
        ]


class Dispatch:
    """An ASGI endpoint: the model that a request names, in its body or behind the ``?``, answers it."""

    def __init__(self, switch: ModelSwitch, config: ServerConfig) -> None:
        self._switch = switch
        self._limits = config.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ModelNotFound, QueueFull and EngineFailure before anything is sent."""
        request = Request(scope, receive)
        raw = await read_body(request, limits=self._limits)
        name = self._switch.name_of(request.query_params.get("model") or named_model(raw))
        lease = await while_connected(request, self._switch.acquire(name))
        try:
            await lease.app(scope, _again(raw, receive), send)
        finally:
            lease.release()


class _Named(msgspec.Struct):
    model: object = None


def named_model(raw: bytes) -> str | None:
    """The ``model`` of a body; None where there is no name, also in what is no body that anybody takes."""
    try:
        model = msgspec.json.decode(raw, type=_Named).model
    except (msgspec.DecodeError, RecursionError):  # whoever answers will say what is wrong
        return None
    return model if isinstance(model, str) and model else None


def _again(raw: bytes, receive: Receive) -> Receive:
    """``receive`` with the body, which was read, in front."""
    unread = [raw]

    async def receive_again() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return receive_again
