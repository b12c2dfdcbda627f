"""``POST /v1/responses``: the reply, streamed and whole.

The stream is OpenAI's, each event with the next ``sequence_number``::

    response.created, response.in_progress
    response.output_item.added
        response.content_part.added
            response.output_text.delta …              or response.reasoning_text.delta …
            response.output_text.done                 or response.reasoning_text.done
        response.content_part.done
        response.function_call_arguments.delta … .done    of a call, which has no parts
        response.custom_tool_call_input.delta … .done     of a custom tool's call
    response.output_item.done
    response.completed, response.incomplete or response.failed

A reply that is sent whole goes through the same steps, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anchorline.api import sse
from anchorline.api.errors import ApiError
from anchorline.api.reply import ReplyHead, timings_of
from anchorline.api.responses_object import (
    IncompleteDetails,
    Reasoning,
    Response,
    ResponseError,
    response_usage,
)
from anchorline.api.responses_output import CallInProgress, Event, ItemInProgress, OutputItems, TextInProgress
from anchorline.api.responses_request import ResponsesCall
from anchorline.engine.request import FinishReason
from anchorline.output.events import (
    ChoiceEvent,
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)

_FAILURES = {"rate_limit_error": "rate_limit_exceeded", "invalid_request_error": "invalid_prompt"}
"""A response's error codes, of which OpenAI has few, by the type of the error."""


class ResponsesWriter:
    """Writes one response. ``keep`` is called with it once it is complete, before anybody is told."""

    def __init__(
        self,
        head: ReplyHead,
        call: ResponsesCall,
        *,
        new_id: Callable[[], str],
        wall_clock: Callable[[], float],
        keep: Callable[[Response], None],
    ) -> None:
        self._head = head
        self._wall_clock = wall_clock
        self._keep = keep
        self._items = OutputItems(head, origins=call.origins, seals_reasoning=call.seals_reasoning, new_id=new_id)
        self._response = Response(
            id=head.id, created_at=head.created, model=head.model, **msgspec.structs.asdict(call.echo)
        )
        self._open: ItemInProgress | None = None
        self._opened = False
        self._sequence = 0
        self._reasoning_tokens = 0
        self._reason = FinishReason.STOP

    def stream(self, event: ChoiceEvent | ReplyFinished) -> bytes:
        return self._encode(self._opening() + self._advance(event))

    def failed(self, error: ApiError) -> bytes:
        """Both events that tell of it: clients differ in which one they look at."""
        events = self._opening()
        response = self._response
        response.status = "failed"
        response.error = ResponseError(code=_FAILURES.get(error.type, "server_error"), message=error.message)
        events.append({"type": "error", "code": error.code, "message": error.message, "param": error.param})
        return self._encode([*events, {"type": "response.failed", "response": response}])

    def ping(self) -> bytes:
        return sse.PING

    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> Response:
        for event in events:
            if not isinstance(event, ReplyFailed):
                self._advance(event)
        return self._response

    def _encode(self, events: list[Event]) -> bytes:
        encoded = []
        for event in events:
            numbered = {"type": event["type"], "sequence_number": self._sequence, **event}
            self._sequence += 1
            encoded.append(sse.named_event(event["type"], numbered))
        return b"".join(encoded)

    def _opening(self) -> list[Event]:
        if self._opened:
            return []
        self._opened = True
        shown = msgspec.structs.replace(self._response, output=[])  # the response may go on before this is encoded
        return [{"type": kind, "response": shown} for kind in ("response.created", "response.in_progress")]

    def _advance(self, event: ChoiceEvent | ReplyFinished) -> list[Event]:
        match event:
            case ReasoningDelta():
                self._reasoning_tokens += len(event.tokens)
                return self._text(event) if event.text else []
            case TextDelta():
                return self._text(event) if event.text else []
            case ToolCallStarted():
                return self._begin(self._items.call(event))
            case ToolCallDelta():
                assert isinstance(self._open, CallInProgress), "arguments follow the start of their call"
                return self._open.add(event.arguments)
            case ToolCallFinished():
                return self._end("completed")
            case ChoiceFinished():
                self._reason = event.reason
                return self._close()
            case ReplyFinished():
                return self._finish(event)

    def _text(self, event: TextDelta | ReasoningDelta) -> list[Event]:
        """Text goes on with the open item when that is of its kind."""
        item, kind = self._open, type(event)
        if isinstance(item, TextInProgress) and item.kind is kind:
            return item.add(event)
        item = self._items.text(kind)
        return self._begin(item) + item.add(event)

    def _begin(self, item: ItemInProgress) -> list[Event]:
        ended = self._end("completed")
        self._open = item
        return ended + item.begin()

    def _end(self, status: str) -> list[Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        ended = item.end(status)
        self._response.output.append(item.item)
        return ended

    def _close(self) -> list[Event]:
        """The choice has ended: so has its last item, and a reply always has something in it."""
        stopped = self._reason is FinishReason.STOP
        events = self._end("completed" if stopped else "incomplete")
        if stopped and all(isinstance(item, Reasoning) for item in self._response.output):
            events += self._begin(self._items.text(TextDelta))
            events += self._end("completed")
        return events

    def _finish(self, finished: ReplyFinished) -> list[Event]:
        response, head = self._response, self._head
        if self._reason is FinishReason.STOP:
            response.status = "completed"
            response.completed_at = int(self._wall_clock())
        else:
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        response.usage = response_usage(finished.report, reasoning_tokens=self._reasoning_tokens)
        response.timings = timings_of(head, finished.report)
        self._keep(response)
        return [{"type": f"response.{response.status}", "response": response}]
