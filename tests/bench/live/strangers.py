"""A chat server that is not Anchorline: it streams what it was told to, and tells no token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from anchorline.bench.trace import CHAT_PATH
from anchorline.config import ServerConfig
from tests.server.support import listening


@dataclass
class Stranger:
    """Answers each call with the next of ``endings``: the last event of a stream, or a whole answer.

    Where that is None it refuses the call.
    """

    endings: Sequence[Any]
    seen: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Path, body and headers of each call."""
    ports: list[int] = field(default_factory=list)
    """The client's, of each call: another one is another connection."""

    async def answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        if request.url.path == "/apply-template":
            return JSONResponse({"error": "there is none"}, status_code=404)
        self.ports.append(request.client.port if request.client else 0)
        self.seen.append((request.url.path, body, dict(request.headers)))
        ending = self.endings[(len(self.seen) - 1) % len(self.endings)]
        if isinstance(ending, Response):
            return ending
        if ending is None:
            return JSONResponse({"error": {"message": "too long for me"}}, status_code=400)
        events = [{"choices": [{"delta": {"content": word}}]} for word in ("well", "then")]
        lines = [f"data: {json.dumps(event)}\n\n" for event in (*events, ending)]
        if request.url.path == CHAT_PATH:
            lines.append("data: [DONE]\n\n")
        return StreamingResponse(iter(lines), media_type="text/event-stream")

    @contextmanager
    def listening(self) -> Iterator[str]:
        routes = [
            Route("/v1/models", lambda _: JSONResponse({"data": [{"id": "strange-7b"}]})),
            Route("/{path:path}", self.answer, methods=["POST"]),
        ]
        with listening(Starlette(routes=routes), ServerConfig(port=0)) as url:
            yield url


def usage(prompt: int, cached: int | None = None, *, prefilled: int | None = None) -> dict[str, Any]:
    """The last event of a chat stream."""
    ending: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": 2}}
    if cached is not None:
        ending["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    if prefilled is not None:
        ending["timings"] = {"prompt_n": prefilled}
    return ending
