"""A proxy between an agent and the server that keeps every call: what was asked, and under which id."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

_ID = re.compile(rb'"id"\s*:\s*"((?:chatcmpl|cmpl|msg|resp)[-_][^"]+)"')
_ID_WITHIN_BYTES = 1 << 20
_DROPPED_HEADERS = frozenset({"host", "content-length", "accept-encoding", "connection", "transfer-encoding"})


@dataclass(slots=True)
class Exchange:
    """One request of the agent and how it was answered."""

    method: str
    path: str
    body: Any
    """The decoded JSON body, or None."""
    status: int = 0
    call_id: str | None = None
    """The id in the reply, under which the server logs the call."""
    answer: bytearray = field(default_factory=bytearray)

    @property
    def generates(self) -> bool:
        """Whether this asked for a reply of the model."""
        return self.method == "POST" and self.path.endswith(("/completions", "/messages", "/responses"))


@contextmanager
def recording(server_url: str) -> Iterator[tuple[str, list[Exchange]]]:
    """A proxy in front of ``server_url`` for as long as the block lasts: its URL, and the list that grows."""
    exchanges: list[Exchange] = []
    listener = socket.create_server(("127.0.0.1", 0))
    app = Starlette(routes=[Route("/{path:path}", _forwarder(server_url, exchanges), methods=["GET", "POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", exchanges
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _forwarder(server_url: str, exchanges: list[Exchange]) -> Any:
    client = httpx.AsyncClient(base_url=server_url, timeout=None, trust_env=False)

    async def forward(request: Request) -> Response:
        raw = await request.body()
        exchange = Exchange(request.method, request.url.path, _decoded(raw))
        exchanges.append(exchange)
        headers = [(name, value) for name, value in request.headers.items() if name not in _DROPPED_HEADERS]
        sent = client.build_request(request.method, str(request.url.path), content=raw, headers=headers)
        answer = await client.send(sent, stream=True)
        exchange.status = answer.status_code
        kept = {name: value for name, value in answer.headers.items() if name not in _DROPPED_HEADERS}
        return StreamingResponse(_copy(answer, exchange), status_code=answer.status_code, headers=kept)

    return forward


async def _copy(answer: httpx.Response, exchange: Exchange) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            exchange.answer += chunk
            if exchange.call_id is None and (found := _ID.search(exchange.answer[:_ID_WITHIN_BYTES])):
                exchange.call_id = found.group(1).decode()
            yield chunk
    finally:
        await answer.aclose()


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return None
