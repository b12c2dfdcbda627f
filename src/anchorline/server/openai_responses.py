"""The endpoints under ``/v1/responses``: making a response, and coming back to one."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from anchorline.api.reply import ReplyHead, ReplyWriter
from anchorline.api.responses_object import Response as ResponseObject
from anchorline.api.responses_reply import ResponsesWriter
from anchorline.api.responses_request import Memory, ResponsesCall, parse_responses, responses_fields
from anchorline.api.responses_store import StoredResponse
from anchorline.errors import RequestError
from anchorline.server.caller import Caller, tenant_of
from anchorline.server.prepare import PreparedCall, prepare_chat_call
from anchorline.server.query import page_size
from anchorline.server.responses import json_response
from anchorline.server.state import ServerState

LISTED_ITEMS, MOST_LISTED_ITEMS = 20, 100
"""Input items on one page: when nothing is said, and at most."""


def prepare_response(raw: bytes, state: ServerState, caller: Caller) -> PreparedCall:
    """A response."""
    memory = Memory(store=state.responses, tenant=caller.tenant)
    call = parse_responses(raw, context=state.context, memory=memory, new_id=state.new_id)

    def writer(head: ReplyHead) -> ReplyWriter:
        return ResponsesWriter(
            head,
            call,
            new_id=state.new_id,
            wall_clock=state.wall_clock,
            keep=lambda response: _keep(response, call, memory),
        )

    with responses_fields(call.origins):
        return prepare_chat_call(
            call.chat,
            state,
            id=f"resp_{state.new_id()}",
            writer=writer,
            caller=caller,
            field="input",
        )


def _keep(response: ResponseObject, call: ResponsesCall, memory: Memory) -> None:
    if call.kept is None:
        return
    node = StoredResponse(
        id=response.id,
        response=msgspec.json.encode(response),
        items=call.kept.items,
        item_ids=(*call.kept.item_ids, *(item.id for item in response.output)),
        previous=call.kept.previous,
    )
    memory.store.put(memory.tenant, node)


class ResponseRoutes:
    """Handlers bound to one server's state."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def retrieve(self, request: Request) -> Response:
        stored = self._stored(request)
        if request.query_params.get("stream") == "true":
            raise RequestError(
                "stream: only responses that are made in the background can be streamed again", field="stream"
            )
        return Response(stored.response, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        id = request.path_params["id"]
        self._state.responses.delete(tenant_of(request, self._state.config), id)
        return json_response({"id": id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        self._stored(request)
        raise RequestError("only responses that are made in the background can be cancelled", code="not_cancellable")

    async def input_items(self, request: Request) -> Response:
        """The whole input of a response, with what came before it; the newest first when nothing is said."""
        stored = self._stored(request)
        query = request.query_params
        limit = page_size(query.get("limit"), default=LISTED_ITEMS, most=MOST_LISTED_ITEMS)
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise RequestError("order must be asc or desc", field="order")
        items = await self._state.prepare(stored.context)
        if order == "desc":
            items.reverse()
        items = _behind(items, query.get("after"))
        page = items[:limit]
        return json_response(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(items) > limit,
            }
        )

    def _stored(self, request: Request) -> StoredResponse:
        return self._state.responses.get(tenant_of(request, self._state.config), request.path_params["id"])


def _behind(items: list[dict[str, Any]], after: str | None) -> list[dict[str, Any]]:
    """What follows the item named ``after``; all of them when none is named."""
    if after is None:
        return items
    for index, item in enumerate(items):
        if item["id"] == after:
            return items[index + 1 :]
    raise RequestError("after must be the id of one of the items", field="after")
