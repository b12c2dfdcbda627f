"""The endpoints under ``/cache``: what is kept, and what shall be (docs/pins.md)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from anchorline.api.anchors import (
    anchor_list,
    anchor_object,
    anchor_position,
    cache_object,
    cleared,
    deleted_anchor,
    made_anchor,
    parse_anchor,
    parse_change,
    parse_clear,
)
from anchorline.cache.pinning import AnchorOrder
from anchorline.engine.commands import ChangePin, ClearCache, Command, ListPins, PinAnchor, RemovePin
from anchorline.engine.request import CallReport, GenerationRequest
from anchorline.errors import NotFound
from anchorline.llama.interface import SamplingParams
from anchorline.server.body import read_body
from anchorline.server.caller import Caller, caller_of
from anchorline.server.leaving import while_connected
from anchorline.server.log import call_line, ended_line, logger
from anchorline.server.prefill import Prefill
from anchorline.server.prepare import build_chat
from anchorline.server.responses import json_response
from anchorline.server.state import ServerState
from anchorline.server.tenants import asking_tenant, owned
from anchorline.server.warming import WarmOrder

T = TypeVar("T")

DELETION_SECONDS = 10.0
"""How long the answer to a clear waits for files to be deleted."""


class AnchorRoutes:
    """Handlers bound to one server's state."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def statistics(self, request: Request) -> Response:
        return json_response(cache_object(await asyncio.wrap_future(self._state.engine.fresh_stats())))

    async def index(self, request: Request) -> Response:
        return json_response(anchor_list(await self._ask(ListPins(tenant=self._tenant(request)))))

    async def create(self, request: Request) -> Response:
        """Prefill and pin; a client that leaves ends that."""
        state = self._state
        caller = caller_of(request, state.config, now=state.monotonic())
        raw = await self._body(request)
        return json_response(await while_connected(request, self.make(raw, caller)))

    async def change(self, request: Request) -> Response:
        asked = parse_change(await self._body(request), limits=self._state.config.limits)
        id = request.path_params["id"]
        change = ChangePin(tenant=self._tenant(request), id=id, name=asked.name, lifetime=asked.lifetime)
        return json_response(anchor_object(await self._ask_about_pin(change)))

    async def delete(self, request: Request) -> Response:
        id = request.path_params["id"]
        await self._ask_about_pin(RemovePin(tenant=self._tenant(request), id=id))
        return json_response(deleted_anchor(id))

    async def clear(self, request: Request) -> Response:
        pins = parse_clear(await self._body(request))
        result = await self._ask(ClearCache(tenant=self._tenant(request), pins=pins))
        # A wait that ends early must not cancel what the disk tier is going to answer.
        deletion = asyncio.shield(asyncio.wrap_future(result.undeleted_files))
        try:
            undeleted = await asyncio.wait_for(deletion, DELETION_SECONDS)
        except TimeoutError:
            undeleted = None
        return json_response(cleared(result, undeleted_files=undeleted))

    def _tenant(self, request: Request) -> str:
        """Whose pins a request is about. Raises RequestError."""
        return asking_tenant(request, self._state.config)

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, limits=self._state.config.limits)

    async def _ask(self, command: Command[T]) -> T:
        return await asyncio.wrap_future(self._state.engine.ask(command))

    async def _ask_about_pin(self, command: Command[T]) -> T:
        """Raises NotFound that says among whose pins there is none: other models of the server have their own."""
        try:
            return await self._ask(command)
        except NotFound as error:
            raise NotFound(f"{error} among those of {self._state.served.name}", field=error.field) from error

    async def make(self, raw: bytes, caller: Caller) -> dict[str, Any]:
        """Prefill and pin what a body asks for; cancelling this ends it. Raises AnchorlineError."""
        order = await self._state.prepare(lambda: self._order(raw, caller))
        made = await self._ask(PinAnchor(order=order, prefilled=False))
        report = None
        if made is None:
            report = await self._prefill(order, caller)
            made = await self._ask(PinAnchor(order=order, prefilled=True))
            assert made is not None, "it is pinned, or refused with an error"
        return made_anchor(made, report)

    def _order(self, raw: bytes, caller: Caller) -> AnchorOrder:
        call = parse_anchor(raw, limits=self._state.config.limits)
        prompt = build_chat(call.prompt, self._state.prompts, tenant=caller.tenant, generates=False).prompt
        return AnchorOrder(
            prompt=owned(prompt, caller.tenant, call.prompt.cache_salt, config=self._state.config),
            position=anchor_position(prompt, call.messages),
            name=call.name,
            ttl_seconds=call.ttl_seconds,
        )

    async def _prefill(self, order: AnchorOrder, caller: Caller) -> CallReport:
        """Prefill up to the anchor and no further. Raises what a call raises."""
        state = self._state
        request = GenerationRequest(
            id=f"anchor-{state.new_id()}",
            prompt=replace(order.prompt.up_to(order.position), promised=True),
            sampling=SamplingParams(),
            max_tokens=0,
            received_seconds=caller.received_seconds,
            switch_seconds=caller.switch_seconds,
        )
        prefill = Prefill()
        state.engine.submit(request, prefill)
        try:
            report = await prefill.report()
        except asyncio.CancelledError:
            state.engine.cancel(request.id)
            state.metrics.cancelled.inc()
            logger.info(ended_line(request.id, status="cancelled", report=None))
            raise
        state.metrics.count_call(report)
        logger.info(call_line(report, state.explanations.explain(report, request.prompt, cache=True)))
        return report


async def warm(state: ServerState) -> None:
    """Make the anchors of --warm, each as its tenant's own call would."""
    routes = AnchorRoutes(state)

    async def make(order: WarmOrder) -> dict[str, Any]:
        return await routes.make(order.body, Caller(received_seconds=state.monotonic(), tenant=order.tenant))

    await state.warming.run(make)
