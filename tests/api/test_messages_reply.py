"""Messages replies written from events: the order of a stream, stop reasons, usage, and whole replies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.api.errors import api_error
from anchorline.api.messages import ReplyShape, parse_messages
from anchorline.api.messages_reply import MessagesWriter, usage_of
from anchorline.api.messages_thinking import hidden_thinking, signature
from anchorline.api.reply import ReplyHead
from anchorline.cache.prompt import PinWish
from anchorline.engine.request import CallReport, FinishReason, MissReason
from anchorline.errors import EngineFailure
from anchorline.output.events import (
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from tests.api.support import CONTEXT
from tests.api.test_replies import REPORT
from tests.server.standin import ByteTokenizer

GOLDEN = Path(__file__).parent / "golden"
END = ReplyFinished(REPORT)
STOP = ChoiceFinished(0, FinishReason.STOP, None)
SHAPE = ReplyShape(shows_thinking=True, warms=False)
FIVE_MINUTES, ONE_HOUR = 300.0, 3600.0
NOTHING_CREATED = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
ROUND: list[ReplyEvent] = [
    ReasoningDelta(0, "Look "),
    ReasoningDelta(0, "it up."),
    TextDelta(0, "I'll lóok.", ()),
    ToolCallStarted(0, 0, "toolu_1", "find"),
    ToolCallDelta(0, 0, '{"title": '),
    ToolCallDelta(0, 0, '"Emma"}'),
    ToolCallFinished(0, 0),
    ToolCallStarted(0, 1, "toolu_2", "list"),
    ToolCallDelta(0, 1, "{}"),
    ToolCallFinished(0, 1),
    ChoiceFinished(0, FinishReason.STOP, None, calls=2),
    END,
]


def writer(
    *, max_tokens: int = 4, wishes: tuple[PinWish, ...] = (), shape: ReplyShape = SHAPE, **fields: Any
) -> MessagesWriter:
    body = {"max_tokens": max_tokens, "messages": [{"role": "user", "content": "hi"}], **fields}
    options = parse_messages(json.dumps(body).encode(), context=CONTEXT).chat.options
    head = ReplyHead(
        id="msg_1",
        created=7,
        model="m",
        fingerprint="fp",
        options=options,
        tokenizer=ByteTokenizer(),
        prompt_tokens=30,
        render_seconds=0.001,
        tokenize_seconds=0.002,
        pin_wishes=wishes,
    )
    return MessagesWriter(head, shape=shape)


def streamed(events: Iterable[Any], **given: Any) -> bytes:
    written = writer(**given)
    return b"".join(written.stream(event) for event in events)


def parsed(stream: bytes) -> list[dict[str, Any]]:
    """The events' data; each is named after its type."""
    found = []
    for event in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def whole(events: list[ReplyEvent], **given: Any) -> dict[str, Any]:
    last = events[-1]
    assert isinstance(last, ReplyFinished)
    reply: dict[str, Any] = json.loads(msgspec.json.encode(writer(**given).whole(events, last)))
    return reply


def folded(stream: bytes) -> dict[str, Any]:
    """A stream put together as the protocol says; checks the order of its events."""
    events = parsed(stream)
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = events[0]["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    texts: list[str] = []
    is_open = False
    for event in events[2:-2]:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            texts.append("")
            is_open = True
            continue
        assert is_open
        assert event["index"] == len(texts) - 1
        if event["type"] == "content_block_stop":
            is_open = False
            continue
        assert event["type"] == "content_block_delta"
        block, delta = message["content"][-1], dict(event["delta"])
        kind = delta.pop("type")
        name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(kind)
        if name is None:
            assert kind == "input_json_delta"
            texts[-1] += delta["partial_json"]
        else:
            block[name] += delta[name]
    assert not is_open
    for block, text in zip(message["content"], texts, strict=True):
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    message |= events[-2]["delta"] | {"usage": events[-2]["usage"]}
    return message


@pytest.mark.parametrize(
    ("name", "events", "given"),
    [
        ("messages_round", ROUND, {}),
        ("messages_hidden", [*ROUND[:3], STOP, END], {"shape": dataclasses.replace(SHAPE, shows_thinking=False)}),
        ("messages_empty", [STOP, END], {}),
    ],
)
def test_streams_are_the_golden_transcripts(name: str, events: list[Any], given: dict[str, Any]) -> None:
    assert streamed(events, **given).decode() == (GOLDEN / f"{name}.sse").read_text()


def test_a_whole_reply_is_shaped_as_anthropic_has_it() -> None:
    assert whole(ROUND) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "Look it up.", "signature": signature("")},
            {"type": "text", "text": "I'll lóok."},
            {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"title": "Emma"}},
            {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 15,
            "cache_creation_input_tokens": 0,
            "cache_creation": NOTHING_CREATED,
            "cache_read_input_tokens": 15,
            "output_tokens": 4,
        },
    }


DELTAS = st.lists(
    st.builds(TextDelta, st.just(0), st.text(max_size=3), st.just(()))
    | st.builds(ReasoningDelta, st.just(0), st.text(max_size=3))
    | st.integers(0, 9),
    max_size=8,
)


@given(deltas=DELTAS, shows_thinking=st.booleans())
def test_streamed_and_whole_replies_agree(deltas: list[Any], shows_thinking: bool) -> None:
    events: list[Any] = []
    calls = 0
    for delta in deltas:
        if not isinstance(delta, int):
            events.append(delta)
            continue
        arguments = json.dumps({"n": delta})
        events.append(ToolCallStarted(0, calls, f"toolu_{calls}", "f"))
        events += [ToolCallDelta(0, calls, part) for part in (arguments[:delta], arguments[delta:])]
        events.append(ToolCallFinished(0, calls))
        calls += 1
    events += [ChoiceFinished(0, FinishReason.STOP, None, calls=calls), END]
    shape = dataclasses.replace(SHAPE, shows_thinking=shows_thinking)
    reply = whole(events, shape=shape)
    assert folded(streamed(events, shape=shape)) == reply
    assert reply["stop_reason"] == ("tool_use" if calls else "end_turn")
    text = "".join(block["text"] for block in reply["content"] if block["type"] == "text")
    assert text == "".join(event.text for event in events if isinstance(event, TextDelta))
    thoughts = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    blocks = [block for block in reply["content"] if block["type"] == "thinking"]
    assert "".join(block["thinking"] or hidden_thinking(block["signature"]) for block in blocks) == thoughts
    assert all(block["signature"] and bool(block["thinking"]) == shows_thinking for block in blocks)


@pytest.mark.parametrize(
    ("finish", "max_tokens", "reason", "sequence"),
    [
        (STOP, 9, "end_turn", None),
        (ChoiceFinished(0, FinishReason.STOP, None, calls=1), 9, "tool_use", None),
        (ChoiceFinished(0, FinishReason.STOP, "END"), 9, "stop_sequence", "END"),
        (ChoiceFinished(0, FinishReason.STOP, "END", calls=1), 9, "stop_sequence", "END"),
        (ChoiceFinished(0, FinishReason.LENGTH, None), REPORT.generated_tokens, "max_tokens", None),
        (ChoiceFinished(0, FinishReason.LENGTH, None, calls=1), REPORT.generated_tokens, "max_tokens", None),
        (ChoiceFinished(0, FinishReason.LENGTH, None), 9, "model_context_window_exceeded", None),
    ],
)
def test_stop_reasons(finish: ChoiceFinished, max_tokens: int, reason: str, sequence: str | None) -> None:
    events: list[ReplyEvent] = [TextDelta(0, "a", ()), finish, END]
    reply = whole(events, max_tokens=max_tokens)
    assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, sequence)
    assert folded(streamed(events, max_tokens=max_tokens)) == reply


def test_a_call_that_is_cut_off_is_closed_in_a_stream_and_left_out_of_a_whole_reply() -> None:
    cut = [*ROUND[:5], ChoiceFinished(0, FinishReason.LENGTH, None), END]
    assert [block["type"] for block in whole(cut)["content"]] == ["thinking", "text"]
    events = parsed(streamed(cut))
    assert [event["type"] for event in events[-4:]] == [
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_arguments_keep_their_text() -> None:
    arguments = '{"b": 1.10, "a": 12345678901234567890123}'
    events: list[ReplyEvent] = [
        ToolCallStarted(0, 0, "t", "f"),
        ToolCallDelta(0, 0, arguments),
        ToolCallFinished(0, 0),
        ChoiceFinished(0, FinishReason.STOP, None, calls=1),
        END,
    ]
    assert arguments.encode() in msgspec.json.encode(writer().whole(events, END))


@pytest.mark.parametrize(
    ("wishes", "five_minutes", "one_hour"),
    [
        ((), 0, 0),
        (((18, FIVE_MINUTES),), 3, 0),  # 15 are restored
        (((12, FIVE_MINUTES),), 0, 0),  # restored beyond the wish
        (((10, FIVE_MINUTES), (28, FIVE_MINUTES)), 13, 0),
        (((30, FIVE_MINUTES),), 14, 0),  # the last token is new in any case
        (((18, ONE_HOUR),), 0, 3),
        (((18, ONE_HOUR), (28, FIVE_MINUTES)), 10, 3),
        (((12, ONE_HOUR), (28, FIVE_MINUTES)), 13, 0),
    ],
)
def test_usage_tells_what_lies_before_the_last_wish_of_each_length(
    wishes: tuple[tuple[int, float], ...], five_minutes: int, one_hour: int
) -> None:
    made = tuple(PinWish(position=position, ttl_seconds=seconds) for position, seconds in wishes)
    usage = whole([STOP, END], wishes=made)["usage"]
    created = five_minutes + one_hour
    assert usage["cache_creation_input_tokens"] == created
    assert usage["cache_creation"] == {
        "ephemeral_5m_input_tokens": five_minutes,
        "ephemeral_1h_input_tokens": one_hour,
    }
    assert usage["cache_read_input_tokens"] == REPORT.restored_tokens
    assert usage["input_tokens"] + created == REPORT.prefilled_tokens


def test_a_stream_opens_with_what_is_known_of_the_prompt() -> None:
    waiting, running = writer(), writer()
    running.admitted(dataclasses.replace(REPORT, prefilled_tokens=0, generated_tokens=0))
    opening = [parsed(written.ping())[0]["message"]["usage"] for written in (waiting, running)]
    assert opening == [
        {
            "input_tokens": new,
            "cache_creation_input_tokens": 0,
            "cache_creation": NOTHING_CREATED,
            "cache_read_input_tokens": restored,
            "output_tokens": 0,
        }
        for new, restored in ((30, 0), (15, 15))
    ]


def test_nothing_is_created_without_a_cache() -> None:
    report: CallReport = dataclasses.replace(
        REPORT, miss=MissReason.OFF, resident_tokens=0, host_tokens=0, prefilled_tokens=30
    )
    usage = usage_of(report, generated_tokens=4, wishes=[PinWish(position=30, ttl_seconds=FIVE_MINUTES)])
    assert (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (30, 0, 0)


def test_a_call_that_only_warms_says_nothing() -> None:
    shape = dataclasses.replace(SHAPE, warms=True)
    events: list[ReplyEvent] = [TextDelta(0, "a", ()), ChoiceFinished(0, FinishReason.STOP, None), END]
    reply = whole(events, shape=shape)
    assert (reply["content"], reply["stop_reason"], reply["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    assert folded(streamed(events, shape=shape)) == reply


def test_a_ping_opens_a_stream_that_has_not_begun() -> None:
    written = writer()
    assert [event["type"] for event in parsed(written.ping())] == ["message_start", "ping"]
    assert written.ping() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert [event["type"] for event in parsed(written.stream(TextDelta(0, "a", ())))] == [
        "content_block_start",
        "content_block_delta",
    ]


def test_an_error_ends_a_stream() -> None:
    written = writer()
    written.ping()
    assert parsed(written.failed(api_error(EngineFailure("out of luck")))) == [
        {"type": "error", "error": {"type": "api_error", "message": "out of luck"}}
    ]


@given(text=st.text())
def test_signatures_hold_what_was_hidden(text: str) -> None:
    assert signature(text)
    assert hidden_thinking(signature(text)) == text


@given(given_signature=st.text() | st.binary().map(lambda data: data.hex()) | st.none() | st.integers())
def test_signatures_of_others_hold_nothing(given_signature: object) -> None:
    assert hidden_thinking(given_signature) == ""
