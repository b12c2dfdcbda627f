"""The endpoints that do not generate."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from anchorline.api.chat import parse_apply_template
from anchorline.api.errors import ApiError
from anchorline.api.models import anthropic_model, anthropic_model_list, model_list, model_object, props, show
from anchorline.api.tokens import (
    TokenizeBody,
    detokenize_reply,
    parse_detokenize,
    parse_tokenize,
    tokenize_reply,
)
from anchorline.engine.stats import EngineStats
from anchorline.errors import ModelNotFound
from anchorline.metrics.metrics import CONTENT_TYPE
from anchorline.server.body import read_body
from anchorline.server.caller import tenant_of
from anchorline.server.prepare import build_chat
from anchorline.server.responses import error_response, json_response, speaks_anthropic
from anchorline.server.state import ServerState


def engine_health(stats: EngineStats) -> dict[str, str]:
    """What ``/health`` says of an engine that serves; nothing when there is nothing to say."""
    fault = stats.cache_fault
    detail = {} if fault is None else {"cache": "off", "cache_fault": fault}
    if stats.disk.enabled:
        detail["cache_disk"] = "on" if stats.disk.indexed else "indexing"
    return detail


class Routes:
    """Handlers bound to one server's state. Whatever is CPU-bound runs in a worker thread."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def health(self, request: Request) -> Response:
        """200 while the engine serves, 503 afterwards; says so when the cache had to be switched off.

        ``warming`` is how many anchors of --warm are still to be made; ``cache_disk`` whether all that was on disk
        at the start is known.
        """
        if self._state.engine.alive:
            detail, left = engine_health(self._state.engine.stats()), self._state.warming.left
            return json_response({"status": "ok", **detail, **({"warming": left} if left else {})})
        dead = ApiError(status=503, message="the engine has stopped", type="server_error", code="engine_failure")
        return error_response(dead, request.scope)

    async def models(self, request: Request) -> Response:
        """In the shape of the protocol that the client names: Anthropic's sends its version."""
        listed = anthropic_model_list if speaks_anthropic(request.scope) else model_list
        return json_response(listed(self._state.served))

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        served = self._state.served
        if name != served.name:
            raise ModelNotFound(name, known=[served.name])
        described = anthropic_model if speaks_anthropic(request.scope) else model_object
        return json_response(described(served))

    async def props(self, request: Request) -> Response:
        return json_response(props(self._state.served))

    async def show(self, request: Request) -> Response:
        await self._body(request)
        return json_response(show(self._state.served))

    async def metrics(self, request: Request) -> Response:
        text = self._state.metrics.exposition()
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def tokenize(self, request: Request) -> Response:
        raw = await self._body(request)
        return json_response(
            await self._state.prepare(lambda: self._tokenize(raw, tenant_of(request, self._state.config)))
        )

    async def detokenize(self, request: Request) -> Response:
        raw = await self._body(request)
        return json_response(await self._state.prepare(lambda: self._detokenize(raw)))

    async def apply_template(self, request: Request) -> Response:
        raw = await self._body(request)
        return json_response(
            await self._state.prepare(lambda: self._apply_template(raw, tenant_of(request, self._state.config)))
        )

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, limits=self._state.config.limits)

    def _tokenize(self, raw: bytes, tenant: str) -> dict[str, Any]:
        tokenizer = self._state.tokenizer
        body = parse_tokenize(raw, vocab_size=tokenizer.vocab_size)
        parts = [body.content] if isinstance(body.content, str) else body.content
        ids: list[int] = []
        if body.add_special and tokenizer.adds_bos and tokenizer.bos is not None:
            ids.append(tokenizer.bos)
        for part in parts:
            ids.extend([part] if isinstance(part, int) else self._text_ids(part, body, tenant))
        return tokenize_reply(ids, tokenizer=tokenizer, with_pieces=body.with_pieces is True)

    def _text_ids(self, text: str, body: TokenizeBody, tenant: str) -> list[int]:
        tokenizer = self._state.tokenizer
        if not text:
            return []
        if body.parse_special is False:
            return [int(token) for token in tokenizer.tokenize(text)]
        ids = [int(token) for token in self._state.prompts.text(text, tenant=tenant).prompt.tokens]
        bos = tokenizer.bos
        if not tokenizer.adds_bos or bos is None or ids[:1] != [bos]:
            return ids
        # The prompt builder has put BOS in front, unless the text itself begins with it.
        return ids if text.encode().startswith(tokenizer.special_piece(bos)) else ids[1:]

    def _detokenize(self, raw: bytes) -> dict[str, Any]:
        tokenizer = self._state.tokenizer
        return detokenize_reply(parse_detokenize(raw, vocab_size=tokenizer.vocab_size), tokenizer=tokenizer)

    def _apply_template(self, raw: bytes, tenant: str) -> dict[str, Any]:
        prompt, return_tokens = parse_apply_template(raw, limits=self._state.config.limits)
        built = build_chat(prompt, self._state.prompts, tenant=tenant, generates=False)
        reply: dict[str, Any] = {"prompt": built.text}
        if return_tokens:
            reply["tokens"] = built.prompt.tokens.tolist()
            reply["cuts"] = [cut.position for cut in built.prompt.cuts]
        return reply
