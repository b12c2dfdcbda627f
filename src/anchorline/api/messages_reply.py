"""``POST /v1/messages``: the reply, streamed and whole.

A stream is ``message_start``, ``ping``, the content blocks one after the other (each
``content_block_start``, its ``content_block_delta``, ``content_block_stop``), ``message_delta`` with
the stop reason and the final usage, ``message_stop``. A whole reply is put together from the same
events, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anchorline.api import sse
from anchorline.api.cache_hints import TTL_SECONDS
from anchorline.api.errors import ApiError
from anchorline.api.messages import ReplyShape
from anchorline.api.messages_errors import error_body
from anchorline.api.messages_thinking import signature
from anchorline.api.messages_wire import (
    Block,
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    CacheCreation,
    InputPart,
    Message,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    Part,
    Ping,
    SignaturePart,
    Stop,
    TextBlock,
    TextPart,
    ThinkingBlock,
    ThinkingPart,
    ToolUseBlock,
    Usage,
)
from anchorline.api.reply import ReplyHead
from anchorline.cache.prompt import PinWish
from anchorline.engine.request import CallReport, FinishReason, MissReason
from anchorline.output.events import (
    ChoiceEvent,
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)


class MessagesWriter:
    """Writes one reply of the Messages protocol."""

    def __init__(self, head: ReplyHead, *, shape: ReplyShape) -> None:
        self._head = head
        self._shape = shape
        self._content = _Content(shows_thinking=shape.shows_thinking)
        self._begun = False
        self._source: CallReport | None = None
        self._finish: ChoiceFinished | None = None

    def admitted(self, report: CallReport) -> None:
        """Take where the prompt comes from, for the usage that a stream opens with. Any thread may call it."""
        self._source = report

    def stream(self, event: ChoiceEvent | ReplyFinished) -> bytes:
        return self._begin() + b"".join(_encoded(step) for step in self._steps(event))

    def failed(self, error: ApiError) -> bytes:
        return self._begin() + sse.named_event("error", error_body(error))

    def ping(self) -> bytes:
        return _encoded(Ping()) if self._begun else self._begin()

    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> msgspec.Struct:
        steps = [
            step for event in events if isinstance(event, ChoiceEvent | ReplyFinished) for step in self._steps(event)
        ]
        stop, usage = self._end(finished.report)
        reply = self._message(usage)
        reply.content = _put_together(steps)
        reply.stop_reason, reply.stop_sequence = stop.stop_reason, stop.stop_sequence
        return reply

    def _begin(self) -> bytes:
        """What a stream opens with, once. While a call waits for its turn all of its prompt is counted as new."""
        if self._begun:
            return b""
        self._begun = True
        usage = Usage(input_tokens=self._head.prompt_tokens)
        if self._source is not None:
            usage = self._usage(self._source, generated_tokens=0)
        return _encoded(MessageStart(self._message(usage))) + _encoded(Ping())

    def _message(self, usage: Usage) -> Message:
        return Message(id=self._head.id, model=self._head.model, content=[], usage=usage)

    def _steps(self, event: ChoiceEvent | ReplyFinished) -> list[MessageEvent]:
        if isinstance(event, ReplyFinished):
            stop, usage = self._end(event.report)
            return [MessageDelta(stop, usage), MessageStop()]
        if isinstance(event, ChoiceFinished):
            self._finish = event
        return [] if self._shape.warms else [*self._content.take(event)]

    def _end(self, report: CallReport) -> tuple[Stop, Usage]:
        assert self._finish is not None, "a choice ends before its reply does"
        stop = Stop(stop_reason=self._stop_reason(self._finish, report), stop_sequence=self._finish.stop_string)
        return stop, self._usage(report, generated_tokens=0 if self._shape.warms else report.generated_tokens)

    def _usage(self, report: CallReport, *, generated_tokens: int) -> Usage:
        return usage_of(report, generated_tokens=generated_tokens, wishes=self._head.pin_wishes)

    def _stop_reason(self, finish: ChoiceFinished, report: CallReport) -> str:
        most = self._head.options.max_tokens
        if self._shape.warms:
            return "max_tokens"
        if finish.reason is FinishReason.LENGTH:
            full = most is None or report.generated_tokens < most
            return "model_context_window_exceeded" if full else "max_tokens"
        if finish.stop_string is not None:
            return "stop_sequence"
        return "tool_use" if finish.calls else "end_turn"


class _Content:
    """Content blocks under way: opens and closes them as their parts come."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: Block | None = None
        self._hidden: list[str] = []
        """Thinking of the open block that is not shown."""

    def take(self, event: ChoiceEvent) -> list[BlockEvent]:
        match event:
            case TextDelta(text=text) if text:
                return [*self._to(TextBlock()), self._delta(TextPart(text))]
            case ReasoningDelta(text=text) if text:
                opening = self._to(ThinkingBlock())
                if self._shows_thinking:
                    return [*opening, self._delta(ThinkingPart(text))]
                self._hidden.append(text)
                return opening
            case ToolCallStarted(id=id, name=name):
                return [*self._close(), *self._start(ToolUseBlock(id=id, name=name)), self._delta(InputPart(""))]
            case ToolCallDelta(arguments=arguments) if arguments:
                return [self._delta(InputPart(arguments))]
            case ToolCallFinished() | ChoiceFinished():
                return self._close()
        return []

    def _to(self, block: Block) -> list[BlockEvent]:
        """Go on with an open block of the same kind, or begin ``block``."""
        return [] if type(self._open) is type(block) else [*self._close(), *self._start(block)]

    def _start(self, block: Block) -> list[BlockEvent]:
        self._index += 1
        self._open = block
        return [BlockStart(self._index, block)]

    def _close(self) -> list[BlockEvent]:
        closing: list[BlockEvent] = []
        if self._open is None:
            return closing
        if isinstance(self._open, ThinkingBlock):
            closing.append(self._delta(SignaturePart(signature("".join(self._hidden)))))
            self._hidden.clear()
        closing.append(BlockStop(self._index))
        self._open = None
        return closing

    def _delta(self, part: Part) -> BlockDelta:
        return BlockDelta(self._index, part)


def usage_of(report: CallReport, *, generated_tokens: int, wishes: Sequence[PinWish]) -> Usage:
    """What was prefilled up to the last wish is created, for an hour up to the last one of an hour.

    The last token of a prompt is always new input, as it is never restored.
    """
    created = _created(report, wishes)
    for_an_hour = _created(report, [wish for wish in wishes if wish.ttl_seconds >= TTL_SECONDS["1h"]])
    return Usage(
        input_tokens=report.prompt_tokens - report.restored_tokens - created,
        cache_creation_input_tokens=created,
        cache_creation=CacheCreation(
            ephemeral_5m_input_tokens=created - for_an_hour, ephemeral_1h_input_tokens=for_an_hour
        ),
        cache_read_input_tokens=report.restored_tokens,
        output_tokens=generated_tokens,
    )


def _created(report: CallReport, wishes: Sequence[PinWish]) -> int:
    """Tokens that were prefilled up to the last of ``wishes``."""
    if report.miss is MissReason.OFF or not wishes:
        return 0
    return max(0, min(wishes[-1].position, report.prompt_tokens - 1) - report.restored_tokens)


def _put_together(steps: list[MessageEvent]) -> list[Block]:
    """The blocks that a stream's events make. A call that was cut off in its arguments is left out."""
    blocks: list[Block] = []
    parts: list[list[str]] = []
    for step in steps:
        if isinstance(step, BlockStart):
            blocks.append(step.content_block)
            parts.append([])
        elif isinstance(step, BlockDelta):
            block, part = blocks[step.index], step.delta
            if isinstance(part, SignaturePart) and isinstance(block, ThinkingBlock):
                block.signature = part.signature
            else:
                parts[step.index].append(_text_of(part))
    return [block for block, texts in zip(blocks, parts, strict=True) if _fill(block, "".join(texts))]


def _text_of(part: Part) -> str:
    match part:
        case TextPart(text):
            return text
        case ThinkingPart(thinking):
            return thinking
        case SignaturePart(signature):
            return signature
        case InputPart(partial_json):
            return partial_json


def _fill(block: Block, text: str) -> bool:
    """Give a block its text; False for a call whose arguments are no JSON object."""
    match block:
        case TextBlock():
            block.text = text
        case ThinkingBlock():
            block.thinking = text
        case ToolUseBlock():
            try:
                msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            except msgspec.DecodeError:
                return False
            block.input = msgspec.Raw(text.encode())
    return True


def _encoded(event: MessageEvent) -> bytes:
    return sse.named_event(str(event.__struct_config__.tag), event)
