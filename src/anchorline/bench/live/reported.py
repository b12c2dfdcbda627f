"""What servers report of a call, of the shapes that each protocol gives it. Fields that are not read are left alone."""

from __future__ import annotations

from typing import Any

import msgspec

from anchorline.bench.client import Count


class Details(msgspec.Struct, frozen=True):
    cached_tokens: Count | None = None


class OpenAiUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Of a chat completion, or, in the fields named otherwise, of a response."""

    prompt_tokens: Count | None = None
    input_tokens: Count | None = None
    completion_tokens: Count | None = None
    output_tokens: Count | None = None
    prompt_tokens_details: Details | None = None
    input_tokens_details: Details | None = None


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Of llama-server and Anchorline."""

    cache_n: Count | None = None
    prompt_n: Count | None = None


class AnthropicUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    output_tokens: Count | None = None


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None

    def says_something(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    delta: ChatDelta | None = None
    tokens: list[Count] | None = None


class ChatEvent(msgspec.Struct, frozen=True, kw_only=True):
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


class StartedMessage(msgspec.Struct, frozen=True):
    usage: dict[str, Any] | None = None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    type: str | None = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None


class MessagesEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str | None = None
    message: StartedMessage | None = None
    usage: dict[str, Any] | None = None
    delta: MessageDelta | None = None


class Failure(msgspec.Struct, frozen=True):
    message: Any = None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    status: str | None = None
    error: Failure | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


class ResponsesEvent(msgspec.Struct, frozen=True, kw_only=True):
    type: str | None = None
    message: Any = None
    delta: Any = None
    response: Response | None = None
    timings: dict[str, Any] | None = None
