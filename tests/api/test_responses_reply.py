"""Responses written from events: the stream's order, and that it says what the whole reply says."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.api.errors import ApiError
from anchorline.api.responses_input import unseal_reasoning
from anchorline.api.responses_object import Response
from anchorline.api.responses_reply import ResponsesWriter
from anchorline.api.responses_request import Memory, ResponsesCall, parse_responses
from anchorline.api.responses_store import ResponseStore
from anchorline.engine.request import FinishReason
from anchorline.llama.interface import TokenLogprob
from anchorline.output.events import (
    ChoiceEvent,
    ChoiceFinished,
    ReasoningDelta,
    TextDelta,
    TokenText,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from tests.api.support import CONTEXT
from tests.api.test_replies import END, head
from tests.support.responses_sdk import check_response, events_of

GOLDEN = Path(__file__).parents[1] / "server" / "golden" / "responses_calls.sse"
TOOLS = [
    {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {
        "type": "namespace",
        "name": "mail",
        "description": "letters",
        "tools": [{"type": "custom", "name": "send"}],
    },
]
STOP = ChoiceFinished(0, FinishReason.STOP, None)
LENGTH = ChoiceFinished(0, FinishReason.LENGTH, None)


def request(**fields: Any) -> ResponsesCall:
    memory = Memory(store=ResponseStore(entries=9, size_bytes=1 << 20), tenant="")
    raw = json.dumps({"input": "hi", "tools": TOOLS} | fields).encode()
    return parse_responses(raw, context=CONTEXT, memory=memory, new_id=lambda: "0")


def writer(call: ResponsesCall | None = None, *, kept: list[Response] | None = None) -> ResponsesWriter:
    call = call or request()
    counter = itertools.count(1)
    keep = kept.append if kept is not None else lambda response: None
    return ResponsesWriter(head(call.chat), call, new_id=lambda: str(next(counter)), wall_clock=lambda: 9.5, keep=keep)


def streamed(events: list[ChoiceEvent], **fields: Any) -> list[dict[str, Any]]:
    made = writer(request(**fields))
    return events_of(b"".join(made.stream(event) for event in [*events, END]))


def whole(events: list[ChoiceEvent], **fields: Any) -> dict[str, Any]:
    response = writer(request(**fields)).whole([*events, END], END)
    body: dict[str, Any] = json.loads(msgspec.json.encode(response))
    check_response(body)
    return body


def token(text: str) -> TokenText:
    return TokenText(ord(text[0]), text.encode(), -0.5, (TokenLogprob(65, -1.5),))


EVERYTHING: list[ChoiceEvent] = [
    ReasoningDelta(0, "I th", (token("I"), token("th"))),
    ReasoningDelta(0, "ink.", (token("ink"),)),
    TextDelta(0, "Let me ", ()),
    TextDelta(0, "look.", ()),
    ToolCallStarted(0, 0, "call-a", "ls"),
    ToolCallDelta(0, 0, '{"path":'),
    ToolCallDelta(0, 0, ' "."}'),
    ToolCallFinished(0, 0),
    ToolCallStarted(0, 1, "call-b", "mail__send"),
    ToolCallDelta(0, 1, '{"input": "Dear\\n'),
    ToolCallDelta(0, 1, 'you"}'),
    ToolCallFinished(0, 1),
    TextDelta(0, "", (token("x"),)),
    ChoiceFinished(0, FinishReason.STOP, None, 2),
]


def test_the_events_come_in_openais_order() -> None:
    events = streamed(EVERYTHING)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.done"] == [0, 1, 2, 3]
    first = events[0]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)


def test_reasoning_text_and_calls_are_the_golden_transcript() -> None:
    made = writer(request(include=["reasoning.encrypted_content"]))
    stream = b"".join(made.stream(event) for event in [*EVERYTHING, END])
    assert stream.decode() == GOLDEN.read_text()


def test_the_items_of_a_reply() -> None:
    reasoning, message, function, custom = whole(EVERYTHING)["output"]
    assert reasoning == {
        "type": "reasoning",
        "id": "rs_1",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "I think."}],
    }
    assert message["content"] == [
        {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []},
    ]
    assert function == {
        "type": "function_call",
        "id": "fc_3",
        "status": "completed",
        "call_id": "call-a",
        "name": "ls",
        "arguments": '{"path": "."}',
    }
    assert custom == {
        "type": "custom_tool_call",
        "id": "ctc_4",
        "status": "completed",
        "call_id": "call-b",
        "name": "send",
        "namespace": "mail",
        "input": "Dear\nyou",
    }


def test_usage_and_what_is_echoed() -> None:
    fields: dict[str, Any] = {
        "instructions": "be brief",
        "temperature": 0.5,
        "max_output_tokens": 77,
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "tool_choice": {"type": "function", "name": "ls"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "truncation": "auto",
        "store": False,
    }
    body = whole(EVERYTHING, **fields)
    assert body["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 15, "cache_write_tokens": 15},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 34,
    }
    assert body["timings"]["cache_n"] == 15
    applied = {"text": {"format": {"type": "text"}, "verbosity": "low"}, "truncation": "disabled"}
    assert {name: body[name] for name in fields} == fields | applied
    assert (body["id"], body["created_at"], body["completed_at"], body["model"]) == ("id-1", 7, 9, "m")
    assert body["tools"] == TOOLS


def test_a_reply_that_was_cut_off_is_incomplete() -> None:
    cut: list[ChoiceEvent] = [*EVERYTHING[:6], LENGTH]
    body = whole(cut)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in body["output"]] == ["completed", "completed", "incomplete"]
    assert body["completed_at"] is None
    assert streamed(cut)[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("before", [[], [ReasoningDelta(0, "hm")]])
def test_a_reply_is_never_without_an_answer(before: list[ChoiceEvent]) -> None:
    body = whole([*before, STOP])
    assert body["output"][-1]["content"][0]["text"] == ""
    assert [item["type"] for item in body["output"]] == [*("reasoning" for _ in before), "message"]
    added = [event["item"] for event in streamed([*before, STOP]) if event["type"] == "response.output_item.added"]
    assert [(item["status"], item["content"]) for item in added] == [("in_progress", [])] * len(added)
    assert len(whole([*before, LENGTH])["output"]) == len(before)


def test_reasoning_is_sealed_when_asked_for() -> None:
    events = streamed(EVERYTHING, include=["reasoning.encrypted_content"], store=False)
    done = next(event["item"] for event in events if event["type"] == "response.output_item.done")
    assert unseal_reasoning(done["encrypted_content"]) == "I think."


def test_logprobs_are_those_of_the_text() -> None:
    include = ["message.output_text.logprobs"]
    events: list[ChoiceEvent] = [
        ReasoningDelta(0, "r", (token("r"),)),
        TextDelta(0, "ab", (token("a"), token("b"))),
        STOP,
    ]
    top = [{"token": "A", "logprob": -1.5}]
    delta = streamed(events, include=include, top_logprobs=1)[10]
    assert delta["logprobs"] == [{"token": name, "logprob": -0.5, "top_logprobs": top} for name in "ab"]
    part = whole(events, include=include, top_logprobs=1)["output"][1]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == ["a", "b"]
    assert part["logprobs"][0]["bytes"] == [97]


def test_a_reply_that_fails_says_so_twice() -> None:
    made, error = writer(), ApiError(status=503, message="gone", type="server_error", code="engine_failure")
    events = events_of(made.stream(EVERYTHING[0]) + made.stream(EVERYTHING[2]) + made.failed(error))
    told, failed = events[-2:]
    assert (told["type"], told["code"], told["message"]) == ("error", "engine_failure", "gone")
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "gone"}
    assert [item["type"] for item in failed["response"]["output"]] == ["reasoning"]


def test_a_reply_that_fails_at_once_is_opened_first() -> None:
    events = events_of(writer().failed(ApiError(status=503, message="gone", type="server_error")))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]
    assert events[0]["response"]["status"] == "in_progress"


def test_it_is_kept_before_its_end_is_told() -> None:
    kept: list[Response] = []
    made = writer(kept=kept)
    for event in EVERYTHING:
        made.stream(event)
    assert not kept
    made.stream(END)
    assert [response.status for response in kept] == ["completed"]


PIECES = st.text(min_size=1, max_size=4)
TEXTS = st.lists(PIECES, min_size=1, max_size=3)
PARTS = st.lists(st.tuples(st.sampled_from(["text", "reasoning", "ls", "mail__send"]), TEXTS), max_size=5)


@settings(deadline=None)
@given(PARTS, st.sampled_from([STOP, LENGTH]))
def test_the_stream_put_together_is_the_whole_reply(parts: list[tuple[str, list[str]]], end: ChoiceFinished) -> None:
    events: list[ChoiceEvent] = []
    calls = 0
    for kind, texts in parts:
        if kind in ("text", "reasoning"):
            made = TextDelta if kind == "text" else ReasoningDelta
            events += [made(0, text, ()) for text in texts]
            continue
        events.append(ToolCallStarted(0, calls, f"call-{calls}", kind))
        events += [ToolCallDelta(0, calls, text) for text in texts]
        events.append(ToolCallFinished(0, calls))
        calls += 1
    events.append(end)
    stream, response = streamed(events), whole(events)
    assert stream[-1]["response"] == response
    done = [event["item"] for event in stream if event["type"] == "response.output_item.done"]
    assert done == response["output"]
    for index, item in enumerate(done):
        deltas = [e["delta"] for e in stream if e["type"].endswith(".delta") and e["output_index"] == index]
        text = item["content"][0]["text"] if "content" in item else item.get("arguments", item.get("input"))
        assert "".join(deltas) == text
