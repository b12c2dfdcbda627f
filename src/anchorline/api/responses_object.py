"""The response object of ``/v1/responses`` and the items in its output."""

from __future__ import annotations

from typing import Any

import msgspec

from anchorline.api.logprobs import ChatTokenLogprob
from anchorline.api.usage import Timings
from anchorline.engine.request import CallReport, MissReason


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[Any] = msgspec.field(default_factory=list)
    logprobs: list[ChatTokenLogprob] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str = ""


class Message(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: str = "in_progress"
    role: str = "assistant"
    content: list[OutputText] = msgspec.field(default_factory=list)


class Reasoning(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """The text itself is the content; nobody makes summaries here."""

    id: str
    status: str = "in_progress"
    summary: list[Any] = msgspec.field(default_factory=list)
    content: list[ReasoningText] = msgspec.field(default_factory=list)
    encrypted_content: str | msgspec.UnsetType = msgspec.UNSET
    """There only when the request's ``include`` asks for it."""


class FunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: str = "in_progress"
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | msgspec.UnsetType = msgspec.UNSET


class CustomToolCall(msgspec.Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    id: str
    status: str = "in_progress"
    call_id: str
    name: str
    input: str = ""
    namespace: str | msgspec.UnsetType = msgspec.UNSET


OutputItem = Message | Reasoning | FunctionCall | CustomToolCall


class InputTokensDetails(msgspec.Struct, kw_only=True, frozen=True):
    cached_tokens: int
    cache_write_tokens: int
    """Prefilled tokens, which the next call may find in the cache; 0 when the cache is off."""


class OutputTokensDetails(msgspec.Struct, kw_only=True, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, kw_only=True, frozen=True):
    reason: str


class ResponseError(msgspec.Struct, kw_only=True, frozen=True):
    code: str
    message: str


class Echo(msgspec.Struct, kw_only=True):
    """What a response repeats of its request, defaults filled in."""

    background: bool = False
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    """Whatever was asked for: a prompt that does not fit is refused."""
    user: str | None


class Response(Echo, kw_only=True):
    """The object as it is sent whole, in events, and for ``GET /v1/responses/{id}``."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = "in_progress"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem] = msgspec.field(default_factory=list)
    usage: ResponseUsage | None = None
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


def response_usage(report: CallReport, *, reasoning_tokens: int) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=report.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=report.restored_tokens,
            cache_write_tokens=0 if report.miss is MissReason.OFF else report.prefilled_tokens,
        ),
        output_tokens=report.generated_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=report.prompt_tokens + report.generated_tokens,
    )
