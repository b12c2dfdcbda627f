"""One conversation reads the same whatever protocol it was sent over."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.bench.trace import TraceRequest
from anchorline.doctor.requests import AgentRequest, Call, Message, read_request
from anchorline.errors import RequestError

CALL = Call("read_file", '{"path": "a.py"}')
WANTED = (
    Message("system", "Be careful."),
    Message("user", "Read a.py"),
    Message("assistant", "Let me see.", reasoning="First read.", calls=(CALL,)),
    Message("tool", "import b"),
)
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "developer", "content": "Be careful."},
        {"role": "user", "content": [{"type": "text", "text": "Read a.py"}]},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning": "First read.",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "read_file", "arguments": CALL.arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": "x", "content": "import b"},
    ],
    "tools": [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}],
}
MESSAGES: dict[str, Any] = {
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
        {"type": "text", "text": "Be careful.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Read a.py", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "First read.", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t", "name": "read_file", "input": {"path": "a.py"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "import b"}]},
    ],
    "tools": [{"name": "read_file", "input_schema": SCHEMA}],
}
RESPONSES: dict[str, Any] = {
    "instructions": "Be careful.",
    "input": [
        {"role": "user", "content": "Read a.py"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "First read."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c", "name": "read_file", "arguments": CALL.arguments},
        {"type": "function_call_output", "call_id": "c", "output": "import b"},
    ],
    "tools": [{"type": "function", "name": "read_file", "parameters": SCHEMA}],
}


def read(path: str, body: dict[str, Any]) -> AgentRequest:
    return read_request(TraceRequest(path=path, body=body, arrival_seconds=0.0, end_seconds=0.0), 7)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/chat/completions/", CHAT),
        ("/v1/messages?beta=true", MESSAGES),
        ("/v1/responses", RESPONSES),
    ],
)
def test_every_protocol_gives_the_same_messages(path: str, body: dict[str, Any]) -> None:
    request = read(path, body)
    assert request.messages == WANTED
    assert request.tool_names == ("read_file",)
    assert (request.index, request.system, request.history) == (7, WANTED[:1], WANTED[1:])


def test_a_leading_billing_header_is_kept_beside_the_messages() -> None:
    assert read("/v1/messages", MESSAGES).billing_header == "x-anthropic-billing-header: cch=1;"
    assert read("/v1/chat/completions", CHAT).billing_header is None


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/embeddings", {"input": "x"}, "/v1/embeddings is no chat call"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "oracle", "content": ""}]}, r"messages\[0\]\.role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, r"tools\[0\]"),
        ("/v1/chat/completions", {"messages": "\ud800"}, "half a surrogate pair"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "no vision"),
        (
            "/v1/responses",
            {"input": "x", "previous_response_id": "r"},
            "previous_response_id names what only the server",
        ),
    ],
)
def test_what_cannot_be_read_is_named(path: str, body: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        read(path, body)


@given(st.data())
def test_a_body_with_one_wrong_part_is_read_or_refused(data: st.DataObject) -> None:
    endings = {"chat/completions": CHAT, "messages": MESSAGES, "responses": RESPONSES}
    path = data.draw(st.sampled_from(sorted(endings)))
    spoiled = copy.deepcopy(endings[path])
    place: Any = spoiled
    key = data.draw(st.sampled_from(sorted(place)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
    place[key] = data.draw(st.sampled_from([None, 7, "x", [], {}, [None], ["x"], [{}], {"type": "text"}]))
    with suppress(RequestError):
        read(f"/v1/{path}", spoiled)
