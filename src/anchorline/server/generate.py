"""Every call that generates: from a body to a reply, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anchorline.api import sse
from anchorline.api.errors import api_error
from anchorline.api.explanation_wire import ASKED_HEADER, wants_headers
from anchorline.errors import Cancelled
from anchorline.output.events import ReplyEvent, ReplyFailed, ReplyFinished
from anchorline.output.reply import Reply
from anchorline.server.body import read_body
from anchorline.server.bridge import EventBridge
from anchorline.server.caller import caller_of
from anchorline.server.explain import CallExplainer
from anchorline.server.leaving import left, while_connected
from anchorline.server.log import call_line, ended_line, error_line, logger
from anchorline.server.prepare import Prepare, PreparedCall
from anchorline.server.responses import SHUTTING_DOWN, json_response
from anchorline.server.sealing import Sealer
from anchorline.server.state import ServerState

CLIENT_CLOSED = 499
"""Status recorded for a request whose client left; nobody reads it."""


Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
"""What starlette calls for a request."""


def generation_endpoint(state: ServerState, prepare: Prepare, sealer: Sealer | None = None) -> Endpoint:
    """The route of one protocol; with ``sealer`` its turns are sealed."""

    async def endpoint(request: Request) -> Response:
        caller = caller_of(request, state.config, now=state.monotonic())
        in_headers = wants_headers(request.headers.get(ASKED_HEADER), default=state.config.explain_headers)
        raw = await read_body(request, limits=state.config.limits)
        call = await while_connected(request, state.prepare(lambda: prepare(raw, state, caller)))
        request.scope["anchorline.id"] = call.request.id
        explainer = CallExplainer(state, call, endpoint=request.url.path, in_headers=in_headers)
        return GenerationResponse(state, call, explainer, sealer)

    return endpoint


class GenerationResponse(Response):
    """Submits a prepared call and writes its reply.

    The response begins with the first event, so that an error before it has its own status. The
    client's disconnect cancels the call at once, as does every other way of leaving early.
    """

    def __init__(self, state: ServerState, call: PreparedCall, explainer: CallExplainer, sealer: Sealer | None) -> None:
        super().__init__()
        self._state = state
        self._call = call
        self._explainer = explainer
        self._sealer = sealer
        self._started = False
        self._completed = False
        """The reply's last event was handled while the client was there."""
        self._accounted = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises QueueFull, RequestError or EngineFailure while nothing has been sent."""
        state, call = self._state, self._call
        bridge = EventBridge(asyncio.get_running_loop())
        options = call.options
        reply = Reply(
            state.tokenizer, choices=options.choices, stop=options.stop, spelled=call.spelled, emit=bridge.emit
        )
        state.engine.submit(self._explainer.request, reply)
        if self._sealer is not None and call.asked is not None:
            self._sealer.begin(call.asked)
        watcher = asyncio.create_task(self._watch(receive, bridge))
        try:
            if options.stream:
                await self._stream(bridge, send)
            else:
                response = await self._whole(bridge)
                await response(scope, receive, send)
        except OSError:  # the connection broke while writing
            self._completed = False
        except asyncio.CancelledError:  # the server ends; a reply that has not begun is left to the edge
            self._completed = False
            self._account_cancelled()
            if not self._started:
                raise
            await self._send(send, self._call.writer.failed(SHUTTING_DOWN), last=True)
        finally:
            watcher.cancel()
            if not self._completed:
                state.engine.cancel(call.request.id)
                state.metrics.cancelled.inc()
                if not self._accounted:
                    bridge.leave(self._account)
            else:
                self._offer()

    def _offer(self) -> None:
        """Let the turn that the client has got be sealed."""
        turn = None if self._call.recorder is None else self._call.recorder.turn
        if self._sealer is not None and self._call.asked is not None and turn is not None:
            self._sealer.offer(self._call.asked, turn)

    async def _watch(self, receive: Receive, bridge: EventBridge) -> None:
        await left(receive)
        if not bridge.ended:
            self._state.engine.cancel(self._call.request.id)
            bridge.disconnect()

    async def _whole(self, bridge: EventBridge) -> Response:
        events: list[ReplyEvent] = []
        while not bridge.ended:
            events.extend(self._parse(await bridge.take()))
            if bridge.disconnected:
                return Response(status_code=CLIENT_CLOSED)
        self._completed = True
        last = events[-1]
        assert isinstance(last, ReplyFinished | ReplyFailed), "a reply ends with its report"
        self._account(last)
        if isinstance(last, ReplyFailed):
            raise last.error
        return json_response(self._call.writer.whole(events, last), headers=self._explainer.headers)

    async def _stream(self, bridge: EventBridge, send: Send) -> None:
        while not bridge.ended:
            events = await bridge.take(timeout_seconds=self._state.ping_seconds)
            if bridge.disconnected:
                return
            self._completed = bridge.ended
            body = self._encode(events)
            if body or bridge.ended:
                await self._send(send, body, last=bridge.ended)

    def _encode(self, events: list[ReplyEvent]) -> bytes:
        """The events as SSE; none at all makes a ping. Raises the error of a reply that never began."""
        if not events:
            return self._call.writer.ping()
        writer = self._call.writer
        parts: list[bytes] = []
        for event in self._parse(events):
            if isinstance(event, ReplyFailed):
                self._account(event)
                if not self._started and not any(parts):
                    raise event.error
                error = api_error(event.error)
                logger.warning(error_line(error, method="POST", path="stream", request_id=self._call.request.id))
                parts.append(writer.failed(error))
                continue
            parts.append(writer.stream(event))
            if isinstance(event, ReplyFinished):
                self._account(event)
        return b"".join(parts)

    def _parse(self, events: list[ReplyEvent]) -> Iterator[ReplyEvent]:
        for event in events:
            for found in self._call.parser.feed(event):
                if self._call.recorder is not None:
                    self._call.recorder.take(found)
                yield found

    async def _send(self, send: Send, body: bytes, *, last: bool) -> None:
        if not self._started:
            self._started = True
            told = {**sse.HEADERS, **self._explainer.headers}
            headers = [(name.encode(), value.encode()) for name, value in told.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        if body or last:
            await send({"type": "http.response.body", "body": body, "more_body": not last})

    def _account(self, event: ReplyFinished | ReplyFailed) -> None:
        """Log and count what the call did, however it ended."""
        self._accounted = True
        metrics, report = self._state.metrics, event.report
        if isinstance(event, ReplyFinished):
            rewriting = self._call.rewriting
            metrics.count_call(event.report)
            metrics.count_rewriting(rewriting.names, floated_tokens=rewriting.floated_tokens)
            explanation = self._explainer.ended(event.report, status="finished")
            line = call_line(event.report, explanation, head_digest=self._call.head_digest, rewriting=rewriting)
            logger.info(line)
            return
        status = "cancelled" if isinstance(event.error, Cancelled) else "failed"
        if report is not None:
            metrics.count_work(report)
            self._explainer.ended(report, status=status)
        logger.info(ended_line(self._call.request.id, status=status, report=report))

    def _account_cancelled(self) -> None:
        """The server ends before the engine can say what the call did."""
        if self._accounted:
            return
        self._accounted = True
        logger.info(ended_line(self._call.request.id, status="cancelled", report=None))
