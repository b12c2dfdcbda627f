"""What of a request of any protocol is worth an anchor: its head, or all of its messages."""

from __future__ import annotations

from typing import Any

from anchorline.api.chat import ChatPrompt, parse_apply_template
from anchorline.api.messages import parse_count_tokens
from anchorline.api.responses_request import parse_responses_prompt
from anchorline.errors import RequestError
from anchorline.limits import Limits
from anchorline.prompt.messages import normalise_messages, system_count

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PATHS = (CHAT, MESSAGES, RESPONSES)


def path_of(body: dict[str, Any]) -> str:
    """The endpoint that ``body`` was made for, by the fields that only its protocol has."""
    if "input" in body or "instructions" in body:
        return RESPONSES
    tools = body.get("tools")
    schemas = isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools)
    return MESSAGES if schemas or "system" in body else CHAT


def anchor_body(raw: bytes, *, path: str, limits: Limits, whole: bool) -> dict[str, Any] | None:
    """The body of ``POST /cache/anchors`` for the request ``raw``; None when it has no head.

    ``path`` is one of PATHS. The head is tools and leading system messages; ``whole`` takes every message. Raises
    RequestError naming the field that cannot be used.
    """
    prompt = _prompt(raw, path=path, limits=limits)
    normal = normalise_messages(prompt.messages)
    messages = prompt.messages if whole else prompt.messages[: system_count(normal)]
    if not messages and not prompt.tools:
        return None
    body: dict[str, Any] = {"messages": messages}
    if prompt.tools:
        body["tools"] = prompt.tools
    if prompt.template_kwargs:
        body["chat_template_kwargs"] = dict(prompt.template_kwargs)
    if prompt.effort is not None:
        body["reasoning_effort"] = prompt.effort
    if prompt.cache_salt is not None:
        body["cache_salt"] = prompt.cache_salt
    return body


def _prompt(raw: bytes, *, path: str, limits: Limits) -> ChatPrompt:
    if path == MESSAGES:
        return parse_count_tokens(raw, limits=limits)
    if path == RESPONSES:
        return parse_responses_prompt(raw, limits=limits)
    if path == CHAT:
        return parse_apply_template(raw, limits=limits)[0]
    raise RequestError(f"path must be one of {', '.join(PATHS)}", field="path")
