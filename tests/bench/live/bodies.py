"""Small calls of each protocol, and traces of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anchorline.bench import agent
from anchorline.bench.trace import CHAT_PATH, Trace, TraceRequest

MESSAGES_PATH = "/v1/messages"
RESPONSES_PATH = "/v1/responses"

Body = dict[str, Any]

FUNCTION = agent.TOOLS[0]["function"]


def chat(*texts: str) -> Body:
    """A conversation of the user's ``texts``, each but the last answered."""
    said = [agent.user(texts[0])]
    for text in texts[1:]:
        said += [agent.assistant("done"), agent.user(text)]
    return agent.chat_body(said, max_tokens=5000)


def messages(*texts: str) -> Body:
    """The same as Anthropic's clients send it, with a billing header of its own in front."""
    return {
        "model": "local",
        "max_tokens": 32000,
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={len(texts)};"},
            {"type": "text", "text": agent.SYSTEM, "cache_control": {"type": "ephemeral"}},
        ],
        "messages": chat(*texts)["messages"][1:],
        "tools": [{"name": "read", "description": "Read a file.", "input_schema": FUNCTION["parameters"]}],
    }


def responses(*texts: str) -> Body:
    """The same as Codex sends it."""
    kinds = {"user": "input_text", "assistant": "output_text"}
    said = chat(*texts)["messages"][1:]
    return {
        "model": "local",
        "instructions": agent.SYSTEM,
        "input": [
            {
                "type": "message",
                "role": message["role"],
                "content": [{"type": kinds[message["role"]], "text": message["content"]}],
            }
            for message in said
        ],
        "tools": [{"type": "function", **FUNCTION}],
    }


def trace_of(path: str, *bodies: Body, times: Sequence[tuple[float, float]] | None = None) -> Trace:
    """One call per body, at ``times`` (arrival, end) in seconds; without them one after the other."""
    pairs = times or [(float(place), float(place)) for place in range(len(bodies))]
    requests = tuple(
        TraceRequest(path=path, body=body, arrival_seconds=arrival, end_seconds=end)
        for body, (arrival, end) in zip(bodies, pairs, strict=True)
    )
    return Trace(name=path.rsplit("/", 1)[-1], requests=requests)


EVERY_PROTOCOL = [(CHAT_PATH, chat), (MESSAGES_PATH, messages), (RESPONSES_PATH, responses)]
