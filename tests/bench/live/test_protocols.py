"""How each protocol's bodies are sent again, and what its events say."""

from __future__ import annotations

from typing import Any

import pytest

from anchorline.bench.client import CallFailed
from anchorline.bench.live.protocols import (
    CHAT,
    MESSAGES,
    RESPONSES,
    ChatReader,
    MessagesReader,
    Reader,
    ResponsesReader,
    WireProtocol,
    protocol_of,
    sent_again,
)

CHAT_EVENTS: list[tuple[dict[str, Any], bool]] = [
    ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
    ({"choices": [{"delta": {"reasoning_content": "hm"}, "tokens": [3]}]}, True),
    ({"choices": [{"delta": {"content": "yes"}, "tokens": [4, 5]}]}, True),
    ({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
    ({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None}, False),
    ({"choices": [], "usage": {"prompt_tokens": 9}, "timings": {"prompt_n": 2, "cache_n": 7}}, False),
]
MESSAGES_EVENTS: list[tuple[dict[str, Any], bool]] = [
    ({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 0}}}, False),
    ({"type": "ping"}, False),
    ({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, False),
    ({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}}, True),
    ({"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}}, False),
    ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "yes"}}, True),
    ({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}}, False),
    ({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}, True),
    (
        {
            "type": "message_delta",
            "delta": {"stop_reason": "x"},
            "usage": {"input_tokens": 2, "cache_read_input_tokens": 7},
        },
        False,
    ),
]
RESPONSES_EVENTS: list[tuple[dict[str, Any], bool]] = [
    ({"type": "response.created", "response": {"status": "in_progress", "usage": None}}, False),
    ({"type": "response.output_item.added"}, False),
    ({"type": "response.reasoning_text.delta", "delta": "hm"}, True),
    ({"type": "response.output_text.delta", "delta": "yes"}, True),
    ({"type": "response.function_call_arguments.delta", "delta": "{"}, True),
    ({"type": "response.output_text.done", "text": "yes"}, False),
    (
        {
            "type": "response.incomplete",
            "response": {
                "status": "incomplete",
                "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 7}},
                "timings": {"prompt_n": 2, "cache_n": 7},
            },
        },
        False,
    ),
]


@pytest.mark.parametrize(
    ("reader", "events"),
    [(ChatReader(), CHAT_EVENTS), (MessagesReader(), MESSAGES_EVENTS), (ResponsesReader(), RESPONSES_EVENTS)],
    ids=["chat", "messages", "responses"],
)
def test_pieces_of_a_reply_are_told_apart_and_counts_are_read(
    reader: Reader, events: list[tuple[dict[str, Any], bool]]
) -> None:
    assert [reader.take(event) for event, _ in events] == [piece for _, piece in events]
    counts = reader.counts()
    assert counts is not None
    assert (counts.prompt_tokens, counts.cached_tokens, counts.prefilled_tokens) == (9, 7, 2)


def test_ids_of_a_reply_are_kept() -> None:
    reader = ChatReader()
    for event, _ in CHAT_EVENTS:
        reader.take(event)
    assert reader.reply == [3, 4, 5]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "message": "no room"},
        {"type": "response.failed", "response": {"status": "failed", "error": {"message": "no room"}}},
    ],
)
def test_a_response_that_fails_is_a_failed_call(event: dict[str, Any]) -> None:
    with pytest.raises(CallFailed, match="no room"):
        ResponsesReader().take(event)


@pytest.mark.parametrize(
    ("reader", "event"),
    [
        (ChatReader, {"choices": 5}),
        (ChatReader, {"choices": ["x"]}),
        (ChatReader, {"choices": [{"delta": "x"}]}),
        (ChatReader, {"choices": [{"tokens": 7}]}),
        (ChatReader, {"choices": [{"tokens": [2**40]}]}),
        (ChatReader, {"usage": [1]}),
        (ChatReader, {"timings": "x"}),
        (MessagesReader, {"type": []}),
        (MessagesReader, {"type": "message_start", "message": "x"}),
        (MessagesReader, {"usage": "x"}),
        (MessagesReader, {"delta": {"type": {}}}),
        (ResponsesReader, {"type": "response.completed", "response": [1]}),
        (ResponsesReader, {"type": "response.completed", "response": {"usage": 5}}),
        (ResponsesReader, {"type": "response.failed", "response": {"status": "failed", "error": "x"}}),
    ],
    ids=repr,
)
def test_an_event_of_another_shape_is_a_failed_call(reader: type[Reader], event: dict[str, Any]) -> None:
    with pytest.raises(CallFailed, match="an event of the answer cannot be read"):
        reader().take(event)


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/v1/chat/completions", CHAT),
        ("/chat/completions/", CHAT),
        ("/v1/messages?beta=true", MESSAGES),
        ("/v1/responses", RESPONSES),
        ("/v1/completions", None),
        ("/v1/messages/count_tokens", None),
    ],
)
def test_the_path_tells_the_protocol(path: str, protocol: WireProtocol | None) -> None:
    assert protocol_of(path) is protocol


@pytest.mark.parametrize(
    ("protocol", "body", "expected"),
    [
        (
            CHAT,
            {"messages": [1], "max_completion_tokens": 900, "top_k": 3, "stream_options": {"include_usage": False}},
            {"messages": [1], "top_k": 3, "max_tokens": 8, "stream_options": {"include_usage": True}},
        ),
        (MESSAGES, {"messages": [1], "max_tokens": 5}, {"messages": [1], "max_tokens": 5}),
        (RESPONSES, {"input": "x", "stream_options": {}}, {"input": "x", "max_output_tokens": 8}),
    ],
    ids=["chat", "messages", "responses"],
)
def test_a_body_is_sent_as_recorded_but_short_and_greedy(
    protocol: WireProtocol, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    sent = sent_again({**body, "model": "recorded", "temperature": 1}, protocol, model="served", max_tokens=8)
    assert sent == {**expected, "model": "served", "temperature": 0, "stream": True}
    assert sent_again({"model": "recorded"}, protocol, model=None, max_tokens=8)["model"] == "recorded"
