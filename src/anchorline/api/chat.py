"""``POST /v1/chat/completions``: the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from anchorline.api.decode import decode_body, json_type
from anchorline.api.options import ApiContext, CallOptions, CompletionFields, call_options
from anchorline.api.ranges import Numeric, Range, check_whole
from anchorline.config import Limits
from anchorline.errors import RequestError

_TOOL_CHOICES = ("none", "auto", "required")


class ChatBody(CompletionFields, kw_only=True):
    """The body as sent; messages and tools stay as decoded, since templates read any field of them."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Numeric = None
    functions: list[Any] | None = None


class ApplyTemplateBody(msgspec.Struct, kw_only=True):
    """``POST /apply-template`` as sent."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_tokens: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """The arguments of ``PromptBuilder.chat``."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    template_kwargs: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A checked chat request."""

    prompt: ChatPrompt
    options: CallOptions


def parse_chat(raw: bytes, *, context: ApiContext) -> ChatCall:
    """Decode and check a chat body. Raises RequestError naming the field."""
    body = decode_body(raw, ChatBody)
    prompt = chat_prompt(body, limits=context.limits)
    _check_tool_choice(body.tool_choice, tools=prompt.tools)
    if body.functions:
        raise RequestError("functions is not supported; send tools", field="functions", code="unsupported_value")
    return ChatCall(prompt=prompt, options=call_options(body, context=context, logprobs=_logprobs(body, context)))


def parse_apply_template(raw: bytes, *, limits: Limits) -> tuple[ChatPrompt, bool]:
    """Decode and check an ``/apply-template`` body: what to render, and whether ids are wanted."""
    body = decode_body(raw, ApplyTemplateBody)
    return chat_prompt(body, limits=limits), body.return_tokens is True


def chat_prompt(body: ChatBody | ApplyTemplateBody, *, limits: Limits) -> ChatPrompt:
    """Bound and check messages and tools; roles and content are checked where they are rendered."""
    if not body.messages:
        raise RequestError("messages must hold at least one message", field="messages")
    if len(body.messages) > limits.messages:
        raise RequestError(
            f"messages has {len(body.messages)} entries; at most {limits.messages} are allowed (--max-messages)",
            field="messages",
        )
    tools = body.tools or None
    if tools and len(tools) > limits.tools:
        raise RequestError(
            f"tools has {len(tools)} entries; at most {limits.tools} are allowed (--max-tools)", field="tools"
        )
    for index, tool in enumerate(tools or ()):
        _check_tool(tool, where=f"tools[{index}]")
    return ChatPrompt(
        messages=body.messages,
        tools=tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        template_kwargs=body.chat_template_kwargs or None,
    )


def _check_tool(tool: dict[str, Any], *, where: str) -> None:
    if tool.get("type", "function") != "function":
        raise RequestError(f'{where}.type must be "function"', field=f"{where}.type", code="unsupported_value")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise RequestError(
            f"{where}.function must be an object, not {json_type(function)}",
            field=f"{where}.function",
            code="invalid_type",
        )
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.function.name must be a string, not empty", field=f"{where}.function.name")


def _check_tool_choice(choice: str | dict[str, Any] | None, *, tools: list[dict[str, Any]] | None) -> None:
    """Accepted in every form OpenAI knows; tools are rendered whatever it says, so the head stays the same."""
    if choice is None:
        return
    if isinstance(choice, str):
        if choice not in _TOOL_CHOICES:
            raise RequestError(
                f"tool_choice must be one of {', '.join(_TOOL_CHOICES)}, or name a function", field="tool_choice"
            )
        return
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RequestError("tool_choice.function.name must be a string", field="tool_choice.function.name")
    if name not in [tool["function"]["name"] for tool in tools or ()]:
        raise RequestError("tool_choice.function.name is not among the tools", field="tool_choice.function.name")


def _logprobs(body: ChatBody, context: ApiContext) -> int | None:
    most = context.limits.logprobs
    top = check_whole(
        "top_logprobs", body.top_logprobs, allowed=Range(low=0, high=most, whole=True, flag="--max-logprobs")
    )
    if not body.logprobs:
        if top:
            raise RequestError("top_logprobs needs logprobs to be true", field="top_logprobs")
        return None
    return top or 0
