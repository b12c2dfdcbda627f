"""A server that says what its calls tell it to, and a recording proxy in front of any server."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from anchorline.bench.client import server_url
from anchorline.config import ServerConfig
from anchorline.limits import Limits
from anchorline.record.anonymise import Anonymiser
from anchorline.record.proxy import recording_app
from anchorline.record.recorder import Recorder
from anchorline.record.trace_file import TraceFile
from anchorline.record.trace_writer import TraceWriter
from tests.record.support import KEY
from tests.server.support import listening

EVENTS = (b"data: {}\n\n", b": ping\n\n", b"data: [DONE]\n\n")


@dataclass
class Upstream:
    """Answers as a word in the body asks for: refuse, stream, hold (after the first event) or cut."""

    seen: list[tuple[Request, bytes]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """The answer to a "hold" was given up by the one who asked."""

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.seen.append((request, body))
        if b"refuse" in body:
            return Response("no", status_code=429, headers={"retry-after": "7"})
        if any(word in body for word in (b"stream", b"hold", b"cut")):
            return StreamingResponse(self._events(body), media_type="text/event-stream")
        return Response(b'{"ok": 1}', media_type="application/json", headers={"x-served": "yes"})

    async def _events(self, body: bytes) -> AsyncIterator[bytes]:
        yield EVENTS[0]
        if b"cut" in body:
            raise ConnectionError("cut")
        if b"hold" in body:
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        for event in EVENTS[1:]:
            yield event

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET", "POST", "DELETE", "PATCH"])])


@contextmanager
def recording(
    upstream: str,
    path: Path,
    *,
    keep_text: bool = False,
    append: bool = False,
    limit_bytes: int = 1 << 20,
    limits: Limits | None = None,
) -> Iterator[tuple[str, Recorder]]:
    """A proxy's URL and its recorder; when the block has ended the trace is whole.

    Each look at the clock finds it a second later.
    """
    config = ServerConfig(port=0, limits=limits or Limits())
    ticks = itertools.count(100)
    with TraceFile(path, append=append, limit_bytes=limit_bytes) as file:
        take = TraceWriter(file, anonymiser=None if keep_text else Anonymiser(KEY)).take
        recorder = Recorder(take, clock=lambda: float(next(ticks)), start_seconds=file.start_seconds)
        try:
            with listening(recording_app(server_url(upstream, flag="--upstream"), recorder, config), config) as url:
                yield url, recorder
        finally:
            recorder.close()
