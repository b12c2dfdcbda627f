"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's protocol, joined to what chat uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from anchorline.api.messages import in_the_words_of_messages, parse_count_tokens, parse_messages
from anchorline.api.messages_reply import MessagesWriter
from anchorline.server.body import read_body
from anchorline.server.caller import Caller, tenant_of
from anchorline.server.prepare import PreparedCall, build_chat, prepare_chat_call
from anchorline.server.responses import json_response
from anchorline.server.state import ServerState


def prepare_messages(raw: bytes, state: ServerState, caller: Caller) -> PreparedCall:
    """A call of the Messages protocol."""
    call = parse_messages(raw, context=state.context)
    with in_the_words_of_messages(call.tool_places):
        prepared = prepare_chat_call(
            call.chat,
            state,
            id=f"msg_{state.new_id()}",
            writer=partial(MessagesWriter, shape=call.shape),
            caller=caller,
        )
    assert isinstance(prepared.writer, MessagesWriter), "the writer is made above"
    return replace(prepared, request=replace(prepared.request, on_admitted=prepared.writer.admitted))


def count_tokens_endpoint(state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    """The route that renders and counts a prompt as a call with the same fields would."""

    def count(raw: bytes, tenant: str) -> int:
        prompt = parse_count_tokens(raw, limits=state.config.limits)
        return len(build_chat(prompt, state.prompts, tenant=tenant, generates=False).prompt)

    async def endpoint(request: Request) -> Response:
        raw = await read_body(request, limits=state.config.limits)
        return json_response(
            {"input_tokens": await state.prepare(lambda: count(raw, tenant_of(request, state.config)))}
        )

    return endpoint
