"""What servers report of a call, of the shapes that each protocol gives it. Fields that are not read are left alone."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

MOST_TOKENS = 2**31 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
"""Of tokens, or the place of one, as a server may tell it; a token id is bounded alike."""
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


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
    finish_reason: Any = None
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


class Model(msgspec.Struct, frozen=True):
    id: str


class ModelList(msgspec.Struct, frozen=True):
    """Of ``/v1/models``."""

    data: Annotated[list[Model], msgspec.Meta(min_length=1)]


class Generation(msgspec.Struct, frozen=True):
    n_ctx: Count


class Props(msgspec.Struct, frozen=True):
    """Of ``/props``."""

    default_generation_settings: Generation


class ToldPrompt(msgspec.Struct, frozen=True):
    """Anchorline's answer to ``/apply-template``."""

    tokens: list[Count]
    cuts: list[Count]


class CachedDetails(msgspec.Struct, frozen=True):
    cached_tokens: Count


class CachedUsage(msgspec.Struct, frozen=True):
    """Of a server that says what it restored."""

    prompt_tokens: Count
    prompt_tokens_details: CachedDetails


class TierTimings(msgspec.Struct, frozen=True, kw_only=True):
    """What Anchorline always tells of a call, and what is read of the rest."""

    cache_n: Count
    prompt_n: Count
    resident_n: Count = 0
    host_n: Count = 0
    disk_n: Count = 0
    prompt_ms: Milliseconds = 0.0
    restore_ms: Milliseconds = 0.0
    ttft_ms: Milliseconds | None = None


class CostOfCall(msgspec.Struct, frozen=True, kw_only=True):
    """Of an answer of Anchorline, in both its forms."""

    usage: CachedUsage
    timings: TierTimings


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """An event of llama-server's ``/completion``."""

    tokens: list[Count] | None = None
    timings: dict[str, Any] | None = None


class WholeMessage(msgspec.Struct, frozen=True):
    content: str | None = None


class WholeChoice(msgspec.Struct, frozen=True, kw_only=True):
    message: WholeMessage
    tokens: list[Count] | None = None


class WholeChat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat completion that is not streamed."""

    choices: Annotated[list[WholeChoice], msgspec.Meta(min_length=1)]
    usage: dict[str, Any]
    timings: dict[str, Any]
