"""Replies written from events: order of chunks, log-probabilities, timings."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest

from anchorline.api.chat_reply import ChatWriter
from anchorline.api.completion_reply import CompletionWriter
from anchorline.api.errors import api_error
from anchorline.api.reply import ReplyHead
from anchorline.api.usage import timings
from anchorline.engine.request import CallReport, FinishReason, PlanKind
from anchorline.errors import (
    AnchorlineError,
    BodyTooLarge,
    Cancelled,
    EngineFailure,
    PromptTooLong,
    QueueFull,
    RequestError,
)
from anchorline.llama.interface import TokenLogprob
from anchorline.output.events import (
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFinished,
    TextDelta,
    TokenText,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from tests.api.support import chat, completion
from tests.server.standin import ByteTokenizer

REPORT = CallReport(
    id="x",
    plan=PlanKind.FORK,
    prompt_tokens=30,
    resident_tokens=10,
    host_tokens=5,
    disk_tokens=2,
    load_seconds=0.25,
    prefilled_tokens=15,
    generated_tokens=4,
    seen_tokens=15,
    miss=None,
    queue_seconds=0.5,
    plan_seconds=0.25,
    restore_seconds=0.125,
    prefill_seconds=3.0,
    decode_seconds=2.0,
    ttft_seconds=4.0,
)
END = ReplyFinished(REPORT)


def token(text: bytes, *, logprob: float | None = None, others: tuple[TokenLogprob, ...] = ()) -> TokenText:
    return TokenText(text[0], text, logprob, others)


def delta(choice: int, text: str, *tokens: TokenText) -> TextDelta:
    return TextDelta(choice, text, tokens)


def head(call: Any) -> ReplyHead:
    return ReplyHead(
        id="id-1",
        created=7,
        model="m",
        fingerprint="fp",
        options=call.options,
        tokenizer=ByteTokenizer(),
        prompt_tokens=30,
        render_seconds=0.001,
        tokenize_seconds=0.002,
    )


def streamed(writer: ChatWriter | CompletionWriter, events: list[Any]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(chunk) for event in events for chunk in writer.chunks(event)]


def test_each_choice_opens_with_its_role_and_the_last_chunk_has_the_timings() -> None:
    events = [
        delta(1, "b"),
        delta(0, "a"),
        ChoiceFinished(1, FinishReason.LENGTH, None),
        delta(0, "c"),
        ChoiceFinished(0, FinishReason.STOP, "x"),
        END,
    ]
    chunks = streamed(ChatWriter(head(chat(n=2))), events)
    shown = [(c["choices"][0]["index"], c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in chunks]
    assert shown == [
        (1, {"role": "assistant", "content": ""}, None),
        (1, {"content": "b"}, None),
        (0, {"role": "assistant", "content": ""}, None),
        (0, {"content": "a"}, None),
        (1, {}, "length"),
        (0, {"content": "c"}, None),
        (0, {}, "stop"),
    ]
    assert ["timings" in chunk for chunk in chunks] == [False] * 6 + [True]
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize(("writer", "call"), [(ChatWriter, chat), (CompletionWriter, completion)])
def test_include_usage_adds_a_chunk_without_choices(writer: Any, call: Any) -> None:
    options = call(stream=True, stream_options={"include_usage": True})
    chunks = streamed(writer(head(options)), [delta(0, "a"), ChoiceFinished(0, FinishReason.STOP, None), END])
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 30,
        "completion_tokens": 4,
        "total_tokens": 34,
        "prompt_tokens_details": {"cached_tokens": 15},
    }
    assert "timings" in chunks[-1]
    assert "timings" not in chunks[-2]


def test_a_choice_without_text_still_opens_and_ends() -> None:
    chunks = streamed(ChatWriter(head(chat())), [ChoiceFinished(0, FinishReason.STOP, None), END])
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]


def test_a_whole_chat_reply_puts_interleaved_choices_in_order() -> None:
    events: list[ReplyEvent] = [
        delta(1, "b", token(b"b")),
        delta(0, "a", token(b"a")),
        delta(1, "d", token(b"d")),
        ChoiceFinished(1, FinishReason.LENGTH, None),
        ChoiceFinished(0, FinishReason.STOP, None),
        END,
    ]
    reply = msgspec.to_builtins(ChatWriter(head(chat(n=2, return_tokens=True))).whole(events, END))
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["a", "bd"]
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["stop", "length"]
    assert [choice["tokens"] for choice in reply["choices"]] == [[97], [98, 100]]
    assert reply["object"] == "chat.completion"
    assert "tokens" not in msgspec.to_builtins(ChatWriter(head(chat())).whole(events[1:2], END))["choices"][0]


CALLS: list[ReplyEvent] = [
    ReasoningDelta(0, "Hm", (token(b"m"),)),
    ToolCallStarted(0, 0, "c1", "look"),
    ToolCallDelta(0, 0, '{"a"', (token(b"a"),)),
    ToolCallStarted(1, 0, "c2", "look"),
    ToolCallDelta(0, 0, ":1}", (token(b"1"),)),
    ToolCallFinished(0, 0),
    ToolCallStarted(0, 1, "c3", "take"),
    ToolCallDelta(0, 1, "{}"),
    ToolCallFinished(0, 1),
    ChoiceFinished(0, FinishReason.STOP, None, 2),
    ToolCallDelta(1, 0, '{"b'),
    ChoiceFinished(1, FinishReason.LENGTH, None, 0),
    END,
]
"""Two choices; the second is cut off within its call."""


def test_calls_are_streamed_by_index_and_named_once() -> None:
    chunks = streamed(ChatWriter(head(chat(n=2))), CALLS)
    shown = [(c["choices"][0]["index"], c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in chunks]
    opening = {"role": "assistant", "content": ""}

    def arguments(call: int, text: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}

    def start(call: int, id: str, name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": ""}
        return {"tool_calls": [{"index": call, "id": id, "type": "function", "function": function}]}

    assert shown == [
        (0, opening, None),
        (0, {"reasoning_content": "Hm"}, None),
        (0, start(0, "c1", "look"), None),
        (0, arguments(0, '{"a"'), None),
        (1, opening, None),
        (1, start(0, "c2", "look"), None),
        (0, arguments(0, ":1}"), None),
        (0, start(1, "c3", "take"), None),
        (0, arguments(1, "{}"), None),
        (0, {}, "tool_calls"),
        (1, arguments(0, '{"b'), None),
        (1, {}, "length"),
    ]


def test_whole_replies_hold_calls_and_reasoning_beside_a_content_of_null() -> None:
    reply = msgspec.to_builtins(ChatWriter(head(chat(n=2, return_tokens=True))).whole(CALLS, END))
    first, second = reply["choices"]
    assert first["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "Hm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}},
            {"id": "c3", "type": "function", "function": {"name": "take", "arguments": "{}"}},
        ],
    }
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "length")
    assert first["tokens"] == [ord("m"), ord("a"), ord("1")]
    assert second["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"b'}
    assert "reasoning_content" not in second["message"]


@pytest.mark.parametrize(
    ("fields", "shown"), [({}, False), ({"return_tokens": True}, True), ({"logprobs": True}, True)]
)
def test_tokens_without_text_are_shown_only_to_who_asked_for_tokens(fields: dict[str, Any], shown: bool) -> None:
    chunks = streamed(ChatWriter(head(chat(**fields))), [*CALLS[1:3], delta(0, "", token(b"]", logprob=-1.0))])
    assert (chunks[-1]["choices"][0]["delta"] == {"content": ""}) == shown


def test_content_next_to_a_call_stays() -> None:
    events: list[ReplyEvent] = [delta(0, "So:"), *CALLS[1:3], ChoiceFinished(0, FinishReason.STOP, None, 1), END]
    message = msgspec.to_builtins(ChatWriter(head(chat())).whole(events, END))["choices"][0]["message"]
    assert (message["content"], len(message["tool_calls"])) == ("So:", 1)


def test_chat_logprobs_carry_bytes_and_no_infinity() -> None:
    split = token(b"\xc3", logprob=-math.inf, others=(TokenLogprob(257, -1.0),))
    events: list[ReplyEvent] = [delta(0, "ä", split, token(b"\xa4", logprob=-0.5))]
    reply = msgspec.to_builtins(ChatWriter(head(chat(logprobs=True, top_logprobs=1))).whole(events, END))
    first, second = reply["choices"][0]["logprobs"]["content"]
    assert first == {
        "token": "�",
        "logprob": -9999.0,
        "bytes": [0xC3],
        "top_logprobs": [{"token": "<|im_end|>", "logprob": -1.0, "bytes": list(b"<|im_end|>")}],
    }
    assert (second["bytes"], second["top_logprobs"]) == ([0xA4], [])
    assert b"Infinity" not in msgspec.json.encode(reply)


def test_text_logprobs_count_offsets_over_a_stream_and_list_the_chosen_token() -> None:
    others = (TokenLogprob(65, -1.0),)
    events = [
        delta(0, "hé", token("hé".encode(), logprob=-0.5, others=others)),
        delta(0, "y", token(b"y", logprob=-0.25)),
        ChoiceFinished(0, FinishReason.STOP, None),
    ]
    chunks = streamed(CompletionWriter(head(completion(logprobs=1))), [*events, END])
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks[:2]]
    assert found[0] == {
        "tokens": ["hé"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"A": -1.0, "hé": -0.5}],
        "text_offset": [0],
    }
    assert found[1]["text_offset"] == [2]
    whole = msgspec.to_builtins(CompletionWriter(head(completion(logprobs=1))).whole(events, END))  # type: ignore[arg-type]
    assert whole["choices"][0]["logprobs"]["text_offset"] == [0, 2]
    assert whole["usage"]["total_tokens"] == 34


def test_timings_in_llama_servers_names() -> None:
    shown = msgspec.to_builtins(timings(REPORT, render_seconds=0.001, tokenize_seconds=0.002))
    assert shown == {
        "cache_n": 15,
        "prompt_n": 15,
        "prompt_ms": 3000.0,
        "prompt_per_token_ms": 200.0,
        "prompt_per_second": 5.0,
        "predicted_n": 4,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 500.0,
        "predicted_per_second": 2.0,
        "restore_ms": 125.0,
        "queue_ms": 500.0,
        "load_ms": 250.0,
        "plan_ms": 250.0,
        "render_ms": 1.0,
        "tokenize_ms": 2.0,
        "ttft_ms": 4000.0,
        "plan": "fork",
        "resident_n": 10,
        "host_n": 5,
        "disk_n": 2,
        "seen_n": 15,
        "miss": None,
    }


def test_timings_of_nothing_are_zero() -> None:
    nothing = dataclasses.replace(
        REPORT, generated_tokens=0, decode_seconds=0.0, prefill_seconds=0.0, ttft_seconds=None
    )
    shown = timings(nothing, render_seconds=0.0, tokenize_seconds=0.0)
    assert (shown.predicted_per_second, shown.predicted_per_token_ms, shown.prompt_per_second) == (0.0, 0.0, 0.0)
    assert shown.ttft_ms is None


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("m", field="f"), 400, "invalid_request_error", "invalid_value"),
        (PromptTooLong(prompt_tokens=5, context_tokens=4), 400, "invalid_request_error", "context_length_exceeded"),
        (BodyTooLarge("m"), 413, "invalid_request_error", "body_too_large"),
        (QueueFull(waiting=1, limit=1, retry_after_seconds=0), 429, "rate_limit_error", "queue_full"),
        (EngineFailure("m"), 503, "server_error", "engine_failure"),
        (Cancelled("m"), 503, "server_error", "cancelled"),
        (AnchorlineError("m"), 500, "server_error", "internal_error"),
    ],
)
def test_errors_as_openai_writes_them(error: AnchorlineError, status: int, kind: str, code: str) -> None:
    reply = api_error(error)
    assert reply.status == status
    body = reply.body()["error"]
    assert (body["message"], body["type"], body["code"]) == (str(error), kind, code)
    assert set(body) == {"message", "type", "param", "code"}
    if status == 429:
        assert reply.headers == {"retry-after": "1"}
