"""The items of a response's output while they grow, and the events that tell of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from anchorline.api.logprobs import ChatTokenLogprob, chat_logprobs
from anchorline.api.reply import ReplyHead
from anchorline.api.responses_input import seal_reasoning
from anchorline.api.responses_object import (
    CustomToolCall,
    FunctionCall,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    ReasoningText,
)
from anchorline.api.responses_tools import ToolKind, ToolOrigin, custom_input
from anchorline.output.events import ReasoningDelta, TextDelta, TokenText, ToolCallStarted

Event = dict[str, Any]
"""One event, without its ``sequence_number``."""


class ItemInProgress(ABC):
    """One item of the output: ``begin`` once, then ``add`` what is generated, then ``end`` once."""

    def __init__(self, item: OutputItem, *, index: int) -> None:
        self.item = item
        self._index = index

    def begin(self) -> list[Event]:
        shown = msgspec.structs.replace(self.item)  # the item itself will have changed when this is encoded
        return [{"type": "response.output_item.added", "output_index": self._index, "item": shown}]

    def end(self, status: str) -> list[Event]:
        """``status`` is what became of the item: completed or incomplete."""
        events = self._complete()
        self.item.status = status
        done: Event = {"type": "response.output_item.done", "output_index": self._index, "item": self.item}
        return [*events, done]

    @abstractmethod
    def _complete(self) -> list[Event]:
        """Fill the item in, and say so."""

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": f"response.{kind}", "item_id": self.item.id, "output_index": self._index, **members}


class TextInProgress(ItemInProgress):
    """A message or reasoning; either is one part of text."""

    kind: type[TextDelta | ReasoningDelta]
    """The events that belong to it."""

    def __init__(self, item: OutputItem, *, index: int) -> None:
        super().__init__(item, index=index)
        self._texts: list[str] = []

    def begin(self) -> list[Event]:
        return [*super().begin(), self._event("content_part.added", content_index=0, part=self._part())]

    @abstractmethod
    def add(self, event: TextDelta | ReasoningDelta) -> list[Event]: ...

    @abstractmethod
    def _part(self) -> OutputText | ReasoningText:
        """The part with the text so far."""

    def _part_done(self, part: OutputText | ReasoningText) -> Event:
        return self._event("content_part.done", content_index=0, part=part)


class ReasoningInProgress(TextInProgress):
    kind = ReasoningDelta

    def __init__(self, item: Reasoning, *, index: int, seals: bool) -> None:
        super().__init__(item, index=index)
        self._reasoning = item
        self._seals = seals

    def add(self, event: TextDelta | ReasoningDelta) -> list[Event]:
        self._texts.append(event.text)
        return [self._event("reasoning_text.delta", content_index=0, delta=event.text)]

    def _part(self) -> ReasoningText:
        return ReasoningText(text="".join(self._texts))

    def _complete(self) -> list[Event]:
        part = self._part()
        self._reasoning.content = [part]
        if self._seals:
            self._reasoning.encrypted_content = seal_reasoning(part.text)
        return [self._event("reasoning_text.done", content_index=0, text=part.text), self._part_done(part)]


class MessageInProgress(TextInProgress):
    kind = TextDelta

    def __init__(self, item: Message, *, index: int, head: ReplyHead) -> None:
        super().__init__(item, index=index)
        self._message = item
        self._head = head
        self._tokens: list[TokenText] = []

    def add(self, event: TextDelta | ReasoningDelta) -> list[Event]:
        self._texts.append(event.text)
        self._tokens += event.tokens
        logprobs = _without_bytes(self._logprobs(event.tokens))
        return [self._event("output_text.delta", content_index=0, delta=event.text, logprobs=logprobs)]

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._texts), logprobs=self._logprobs(tuple(self._tokens)))

    def _complete(self) -> list[Event]:
        part = self._part()
        self._message.content = [part]
        logprobs = _without_bytes(part.logprobs)
        done = self._event("output_text.done", content_index=0, text=part.text, logprobs=logprobs)
        return [done, self._part_done(part)]

    def _logprobs(self, tokens: tuple[TokenText, ...]) -> list[ChatTokenLogprob]:
        if self._head.options.logprobs is None:
            return []
        return chat_logprobs(tokens, tokenizer=self._head.tokenizer).content


class CallInProgress(ItemInProgress):
    """A call of a function or a custom tool."""

    def __init__(self, item: OutputItem, *, index: int) -> None:
        super().__init__(item, index=index)
        self._arguments: list[str] = []

    def add(self, arguments: str) -> list[Event]:
        self._arguments.append(arguments)
        return []


class FunctionCallInProgress(CallInProgress):
    def __init__(self, item: FunctionCall, *, index: int) -> None:
        super().__init__(item, index=index)
        self._call = item

    def add(self, arguments: str) -> list[Event]:
        super().add(arguments)
        return [self._event("function_call_arguments.delta", delta=arguments)] if arguments else []

    def _complete(self) -> list[Event]:
        self._call.arguments = "".join(self._arguments)
        return [self._event("function_call_arguments.done", arguments=self._call.arguments)]


class CustomCallInProgress(CallInProgress):
    """The text for the tool is told at once, when the JSON around it is complete."""

    def __init__(self, item: CustomToolCall, *, index: int) -> None:
        super().__init__(item, index=index)
        self._call = item

    def _complete(self) -> list[Event]:
        text = self._call.input = custom_input("".join(self._arguments))
        delta = [self._event("custom_tool_call_input.delta", delta=text)] if text else []
        return [*delta, self._event("custom_tool_call_input.done", input=text)]


class OutputItems:
    """Makes the items of one response, in order."""

    def __init__(
        self, head: ReplyHead, *, origins: Mapping[str, ToolOrigin], seals_reasoning: bool, new_id: Callable[[], str]
    ) -> None:
        self._head = head
        self._origins = origins
        self._seals_reasoning = seals_reasoning
        self._new_id = new_id
        self._count = 0

    def text(self, kind: type[TextDelta | ReasoningDelta]) -> TextInProgress:
        """The item that events of ``kind`` fill."""
        if kind is ReasoningDelta:
            item = Reasoning(id=f"rs_{self._new_id()}")
            return ReasoningInProgress(item, index=self._next(), seals=self._seals_reasoning)
        return MessageInProgress(Message(id=f"msg_{self._new_id()}"), index=self._next(), head=self._head)

    def call(self, started: ToolCallStarted) -> CallInProgress:
        """A call under the name that its tool has in the request."""
        origin = self._origins[started.name]
        namespace = origin.namespace or msgspec.UNSET
        made = {"call_id": started.id, "name": origin.name}
        if origin.kind is ToolKind.CUSTOM:
            custom = CustomToolCall(id=f"ctc_{self._new_id()}", namespace=namespace, **made)
            return CustomCallInProgress(custom, index=self._next())
        function = FunctionCall(id=f"fc_{self._new_id()}", namespace=namespace, **made)
        return FunctionCallInProgress(function, index=self._next())

    def _next(self) -> int:
        self._count += 1
        return self._count - 1


def _without_bytes(logprobs: list[ChatTokenLogprob]) -> list[dict[str, Any]]:
    """As the text events have them."""
    return [
        {
            "token": entry.token,
            "logprob": entry.logprob,
            "top_logprobs": [{"token": other.token, "logprob": other.logprob} for other in entry.top_logprobs],
        }
        for entry in logprobs
    ]
