"""Why a prompt was prefilled: in headers, ``/cache/explain`` and ``/cache/requests`` (docs/explain.md)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from anchorline.api.explanation import Explanation
from anchorline.api.explanation_wire import ExplainedCall, explanation_headers, plan_object, request_list
from anchorline.engine.commands import PreviewCall
from anchorline.engine.request import CallReport, GenerationRequest
from anchorline.errors import RequestError
from anchorline.server.body import read_body
from anchorline.server.caller import caller_of
from anchorline.server.leaving import while_connected
from anchorline.server.messages import prepare_messages
from anchorline.server.openai_responses import prepare_response
from anchorline.server.prepare import Prepare, PreparedCall, prepare_chat, prepare_completion
from anchorline.server.query import page_size
from anchorline.server.responses import json_response
from anchorline.server.state import ServerState
from anchorline.server.tenants import asking_tenant

PREPARES: dict[str, Prepare] = {
    "/v1/chat/completions": prepare_chat,
    "/v1/completions": prepare_completion,
    "/v1/messages": prepare_messages,
    "/v1/responses": prepare_response,
}
"""The calls that can be planned without being run, by their endpoint."""

LISTED_REQUESTS = 50
"""Requests that are listed when nothing is said."""


class CallExplainer:
    """Explains one call, while it runs and when it has ended."""

    def __init__(self, state: ServerState, call: PreparedCall, *, endpoint: str, in_headers: bool) -> None:
        self._state = state
        self._call = call
        self._endpoint = endpoint
        self._in_headers = in_headers
        self._planned: CallReport | None = None

    @property
    def request(self) -> GenerationRequest:
        """What to submit: where headers are wanted it tells this object of its plan, too."""
        request = self._call.request
        return replace(request, on_admitted=self._admitted) if self._in_headers else request

    def _admitted(self, report: CallReport) -> None:
        """Called on the engine thread."""
        self._planned = report
        if self._call.request.on_admitted is not None:
            self._call.request.on_admitted(report)

    @property
    def headers(self) -> dict[str, str]:
        """Those of the reply, by what is known now; none unless they are wanted."""
        if not self._in_headers:
            return {}
        explanation = None if self._planned is None else self._explain(self._planned)
        return explanation_headers(self._call.request.id, explanation)

    def ended(self, report: CallReport, *, status: str) -> Explanation:
        """The explanation of the call, which is kept for ``GET /cache/requests``."""
        explanation = self._explain(report)
        self._state.explanations.keep(
            ExplainedCall(
                tenant=self._call.request.prompt.tenant,
                endpoint=self._endpoint,
                created=int(self._state.wall_clock()),
                status=status,
                head_digest=self._call.head_digest,
                report=replace(report, difference=None),  # it holds ids of what was said
                explanation=explanation,
                rewriting=self._call.rewriting,
            )
        )
        return explanation

    def _explain(self, report: CallReport) -> Explanation:
        cache = self._state.engine.stats().host_budget_bytes > 0
        return self._state.explanations.explain(report, self._call.request.prompt, cache=cache)


class ExplainRoutes:
    """Handlers bound to one server's state."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def plan(self, request: Request) -> Response:
        """What a call would restore and prefill, and why; it is prepared as a call and then not run."""
        state = self._state
        endpoint = request.query_params.get("endpoint", "/v1/chat/completions")
        if endpoint not in PREPARES:
            raise RequestError(f"endpoint must be one of {', '.join(PREPARES)}", field="endpoint")
        caller = caller_of(request, state.config, now=state.monotonic(), generates=False)
        raw = await read_body(request, limits=state.config.limits)
        call = await while_connected(request, state.prepare(lambda: PREPARES[endpoint](raw, state, caller)))
        preview = await asyncio.wrap_future(state.engine.ask(PreviewCall(request=call.request)))
        explanation = state.explanations.explain(preview.report, call.request.prompt, cache=preview.cache)
        return json_response(plan_object(explanation, pending_saves=preview.pending_saves, rewriting=call.rewriting))

    async def index(self, request: Request) -> Response:
        """The latest calls of the caller's tenant that have ended."""
        config = self._state.config
        most = config.limits.recent_requests
        limit = page_size(
            request.query_params.get("limit"),
            default=min(LISTED_REQUESTS, most),
            most=most,
            flag="--max-recent-requests",
        )
        return json_response(request_list(self._state.explanations.latest(asking_tenant(request, config), limit=limit)))
