"""The application of a server with several models: each request goes to the endpoints of the model that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
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
from anchorline.errors import AnchorlineError
from anchorline.metrics.metrics import CONTENT_TYPE, Metrics
from anchorline.server.app import ENDPOINTS, layered
from anchorline.server.body import read_body
from anchorline.server.caller import SWITCH_SECONDS, is_admitted
from anchorline.server.early_stream import EarlyStream
from anchorline.server.generate import Endpoint
from anchorline.server.leaving import left
from anchorline.server.log import log_error
from anchorline.server.responses import failure, json_response, speaks_anthropic
from anchorline.server.routes import engine_health
from anchorline.server.state import PING_SECONDS
from anchorline.server.switch import Lease, ModelSwitch


def build_switching_app(
    switch: ModelSwitch,
    config: ServerConfig,
    *,
    metrics: Metrics,
    new_id: Callable[[], str],
    created: int,
    ping_seconds: float = PING_SECONDS,
) -> Starlette:
    """The ASGI application of a server whose models take turns; ``created`` is when it started.

    A streamed reply sends a comment whenever it has waited ``ping_seconds`` for its model.
    """
    own = SwitchRoutes(switch, config, metrics, created=created)
    answered: dict[str, Endpoint] = {
        "rest.models": own.models,
        "rest.model": own.model,
        "rest.health": own.health,
        "rest.metrics": own.metrics,
    }
    dispatch = Dispatch(switch, config, ping_seconds=None)
    streaming = dict.fromkeys(STREAMING, Dispatch(switch, config, ping_seconds=ping_seconds))
    handlers: dict[str, Endpoint | Dispatch] = {**streaming, **answered}
    routes = [Route(path, handlers.get(name, dispatch), methods=[method]) for method, path, name in ENDPOINTS]
    return layered(routes, config, metrics=metrics, new_id=new_id)


T = TypeVar("T")

_NULL = msgspec.Raw(b"null")

TAKE_SECONDS = 60.0
"""A client that takes nothing of its reply for so long counts as gone: others may wait until it has ended."""

STREAMING = ("chat", "completion", "messages", "response")
"""Handlers whose replies may be streamed."""


class SwitchRoutes:
    """What is answered at once, whatever is loaded."""

    def __init__(self, switch: ModelSwitch, config: ServerConfig, metrics: Metrics, *, created: int) -> None:
        """``created`` is when the server started, in Unix seconds."""
        self._switch = switch
        self._config = config
        self._metrics = metrics
        self._created = created

    async def health(self, request: Request) -> Response:
        """200 as long as models can be loaded; of the loaded one what a server with it alone would tell.

        Which models there are is for those alone who may use them.
        """
        loaded = self._switch.loaded
        detail: dict[str, object] = {}
        if loaded is not None and loaded.engine.alive:
            detail.update(engine_health(loaded.engine.stats()))
        if is_admitted(request.headers, self._config):
            detail["models"] = {listed.name: listed.status for listed in self._listed()}
            detail["waiting"] = self._switch.waiting
        return json_response({"status": "ok", **detail})

    async def models(self, request: Request) -> Response:
        shown = listed_anthropic_models if speaks_anthropic(request.scope) else listed_models
        return json_response(shown(self._listed()))

    async def model(self, request: Request) -> Response:
        name = self._switch.name_of(request.path_params["name"])
        shown = listed_anthropic_model if speaks_anthropic(request.scope) else listed_model
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

    def __init__(self, switch: ModelSwitch, config: ServerConfig, *, ping_seconds: float | None) -> None:
        """``ping_seconds`` is as for the application; None where replies are not streamed."""
        self._switch = switch
        self._limits = config.limits
        self._ping_seconds = ping_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ModelNotFound, QueueFull and EngineFailure before anything is sent; a stream ends with them."""
        request = Request(scope, receive)
        raw = await read_body(request, limits=self._limits)
        said = _read(raw)
        name = self._switch.name_of(said.name or request.query_params.get("model") or None)
        receive_again = _again(raw, receive)
        del raw  # it may be large, and is read once more at most
        stream = EarlyStream(_while_taken(send), scope)
        try:
            await self._answer(request, name, receive_again, stream, pings=said.streams)
        except (ClientDisconnect, OSError):
            if not stream.begun:
                raise
        except BaseException as error:
            if not stream.takes_error:
                raise
            told = failure(error)
            log_error(told, scope)
            with suppress(OSError):  # the client has left, too
                await stream.fail(told)
            if not isinstance(error, AnchorlineError):
                raise

    async def _answer(
        self, request: Request, name: str, receive_again: Receive, stream: EarlyStream, *, pings: bool
    ) -> None:
        lease = await self._lease(request, name, stream, pings=pings)
        request.scope[SWITCH_SECONDS] = lease.waited_seconds
        try:
            await lease.app(request.scope, receive_again, stream)
        finally:
            lease.release()

    async def _lease(self, request: Request, name: str, stream: EarlyStream, *, pings: bool) -> Lease:
        """The turn of a request; ``stream`` says meanwhile that it is waited for.

        Raises what ``ModelSwitch.acquire`` does, ClientDisconnect, and OSError when nothing more can be sent.
        """
        turn = asyncio.create_task(self._switch.acquire(name))
        leaving = asyncio.create_task(left(request.receive))
        timeout = self._ping_seconds if pings else None
        try:
            while not turn.done():
                await asyncio.wait((turn, leaving), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done() and not turn.done():
                    raise ClientDisconnect
                if not turn.done():
                    await stream.ping()
            return turn.result()
        except BaseException:
            turn.cancel()
            turn.add_done_callback(_give_back)
            raise
        finally:
            leaving.cancel()


def _give_back(turn: asyncio.Task[Lease]) -> None:
    """Nobody wants the turn any more, which may just have come."""
    if not turn.cancelled() and turn.exception() is None:
        turn.result().release()


class _Fields(msgspec.Struct):
    """Fields of a body as they stand there: what is large, or no name at all, is not built."""

    model: msgspec.Raw = _NULL
    stream: msgspec.Raw = _NULL


@dataclass(frozen=True, slots=True)
class _Said:
    """What of a body is looked at here; whatever is wrong with it, whoever answers will say."""

    name: str | None
    streams: bool


def _read(raw: bytes) -> _Said:
    fields = _decoded(raw, _Fields) or _Fields()
    return _Said(name=_decoded(fields.model, str) or None, streams=_decoded(fields.stream, bool) or False)


def _decoded(raw: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    """None when it is something else."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def _while_taken(send: Send) -> Send:
    """``send``, which raises TimeoutError, an OSError, when the client takes nothing more."""

    async def send_in_time(message: Message) -> None:
        async with asyncio.timeout(TAKE_SECONDS):
            await send(message)

    return send_in_time


def _again(raw: bytes, receive: Receive) -> Receive:
    """``receive`` with the body, which was read, in front."""
    unread = [raw]

    async def receive_again() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return receive_again
