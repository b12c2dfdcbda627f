"""``POST /v1/chat/completions``: the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anchorline.api.cache_hints import NO_HINTS, CacheHints, chat_hints
from anchorline.api.decode import decode_body, json_type
from anchorline.api.options import ApiContext, CallOptions, CompletionFields, call_options, check_cache_salt
from anchorline.api.ranges import Numeric, Range, check_whole
from anchorline.api.structured import answer_of, call_mode, chat_constraint
from anchorline.api.thinking import check_budget, check_effort, check_reasoning_format, template_kwargs
from anchorline.constraint.spec import ConstraintSpec
from anchorline.errors import RequestError
from anchorline.limits import Limits
from anchorline.output.format import CallMode

_TOOL_CHOICES = ("none", "auto", "required")


class ChatBody(CompletionFields, kw_only=True):
    """The body as sent; messages and tools stay as decoded, since templates read any field of them."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Numeric = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None
    reasoning_format: str | None = None
    reasoning_budget: Numeric = None
    thinking_budget: Numeric = None
    thinking_budget_tokens: Numeric = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """The arguments of ``PromptBuilder.chat``, and what its tenant is made of."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    template_kwargs: Mapping[str, Any] | None
    effort: str | None = None
    """How much the model should think, one of EFFORTS; None leaves it to the template."""
    continue_final: bool = False
    """The last message is the assistant's, and the reply goes on with its text."""
    cache_salt: str | None = None
    """What keeps the call apart from others of its key; see ``server.tenants``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A checked chat request."""

    prompt: ChatPrompt
    options: CallOptions
    calls: CallMode = CallMode.AUTO
    """Where tool calls are looked for; without tools there are none."""
    constraint: ConstraintSpec | None = None
    """What the reply has to keep to; None asks nothing of it."""
    split_reasoning: bool = True
    """Whether reasoning is told apart from content."""
    reasoning_budget_tokens: int | None = None
    """Most tokens of a reasoning block before it is closed; None sets no limit."""
    cache: CacheHints = NO_HINTS
    """What the client says about caching."""


def parse_chat(raw: bytes, *, context: ApiContext) -> ChatCall:
    """Decode and check a chat body. Raises RequestError naming the field."""
    return chat_call(decode_body(raw, ChatBody), context=context)


def chat_call(body: ChatBody, *, context: ApiContext) -> ChatCall:
    """Check a body, of a chat completion or brought into its form. Raises RequestError naming the field."""
    prompt = chat_prompt(body, limits=context.limits)
    _check_tool_choice(body.tool_choice, tools=prompt.tools)
    if body.functions:
        raise RequestError("functions is not supported; send tools", field="functions", code="unsupported_value")
    if set(body.modalities or ()) - {"text"}:
        raise RequestError('modalities may only be ["text"]', field="modalities", code="unsupported_value")
    budgets = {name: getattr(body, name) for name in ("thinking_budget", "reasoning_budget", "thinking_budget_tokens")}
    return ChatCall(
        prompt=prompt,
        options=call_options(body, context=context, logprobs=_logprobs(body, context)),
        calls=call_mode(body.tool_choice),
        constraint=chat_constraint(
            answer_of(body),
            tools=prompt.tools,
            tool_choice=body.tool_choice,
            several=body.parallel_tool_calls is not False,
        ),
        split_reasoning=check_reasoning_format(body.reasoning_format),
        reasoning_budget_tokens=check_budget(budgets),
        cache=chat_hints(
            tools=prompt.tools or (),
            messages=prompt.messages,
            key=body.prompt_cache_key,
            retention=body.prompt_cache_retention,
            limits=context.limits,
        ),
    )


def parse_apply_template(raw: bytes, *, limits: Limits) -> tuple[ChatPrompt, bool]:
    """Check an ``/apply-template`` body, which is that of a chat: what to render, and whether ids are wanted."""
    body = decode_body(raw, ChatBody)
    return chat_prompt(body, limits=limits), body.return_tokens is True


def chat_prompt(body: ChatBody, *, limits: Limits) -> ChatPrompt:
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
        template_kwargs=template_kwargs(body.chat_template_kwargs, enable_thinking=body.enable_thinking) or None,
        effort=check_effort(body.reasoning_effort),
        continue_final=_continues(body),
        cache_salt=check_cache_salt(body.cache_salt, limits=limits),
    )


def can_continue(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last message is the beginning of a reply: the assistant's, and no call."""
    last = messages[-1]
    return last.get("role") == "assistant" and not last.get("tool_calls") and not last.get("function_call")


def _continues(body: ChatBody) -> bool:
    """Whether the reply goes on with the text of a last message of the assistant's.

    It does unless told otherwise, as in llama-server; vLLM's ``continue_final_message`` insists on it.
    """
    possible = can_continue(body.messages)
    if not body.continue_final_message:
        asked = body.continue_final_message is None and body.add_generation_prompt is not False
        return possible and asked
    if body.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other", field="continue_final_message"
        )
    if not possible:
        raise RequestError(
            "continue_final_message needs a last message of the assistant's, without tool calls",
            field="continue_final_message",
        )
    return True


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
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestError(
            f"{where}.function.parameters must be an object, not {json_type(parameters)}",
            field=f"{where}.function.parameters",
            code="invalid_type",
        )


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
