"""Small traces of agents with the demo's system prompt and tools."""

from __future__ import annotations

from typing import Any

from anchorline.bench import agent
from anchorline.bench.trace import CHAT_PATH, Trace, TraceRequest


def body_of(*messages: agent.Message, tools: bool = True) -> dict[str, Any]:
    body = agent.chat_body(list(messages), max_tokens=5000, tools=tools)
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def trace_of(name: str, *bodies: dict[str, Any]) -> Trace:
    """One chat call per body, none of which overlaps another."""
    requests = tuple(
        TraceRequest(path=CHAT_PATH, body=body, arrival_seconds=float(i), end_seconds=float(i))
        for i, body in enumerate(bodies)
    )
    return Trace(name=name, requests=requests)
