"""Bodies of the Responses protocol: what is made of them and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import msgspec
import pytest

from anchorline.api.responses_request import Memory, ResponsesCall, parse_responses, responses_fields
from anchorline.api.responses_store import ResponseStore, StoredResponse
from anchorline.errors import NotFound, RequestError
from tests.api.support import CONTEXT, LIMITS

ME = "me"
ROOMY = dataclasses.replace(CONTEXT, limits=dataclasses.replace(LIMITS, messages=4))


def parse(store: ResponseStore | None = None, /, **fields: Any) -> ResponsesCall:
    counter = itertools.count(1)
    memory = Memory(store=store or ResponseStore(entries=9, size_bytes=1 << 20), tenant=ME)
    raw = json.dumps({"input": "hi"} | fields).encode()
    return parse_responses(raw, context=ROOMY, memory=memory, new_id=lambda: str(next(counter)))


def store_with(call: ResponsesCall, *output: dict[str, Any]) -> ResponseStore:
    """A store in which ``call`` was answered by ``output``, as resp_1."""
    store = ResponseStore(entries=9, size_bytes=1 << 20)
    assert call.kept is not None
    ids = (*call.kept.item_ids, *(item["id"] for item in output))
    response = json.dumps({"output": output}).encode()
    node = StoredResponse(
        id="resp_1", response=response, items=call.kept.items, item_ids=ids, previous=call.kept.previous
    )
    store.put(ME, node)
    return store


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
ANSWER = {"type": "message", "id": "msg_9", "role": "assistant", "content": [{"type": "output_text", "text": "yo"}]}


def test_a_request_goes_on_from_an_earlier_one_without_its_instructions() -> None:
    store = store_with(parse(instructions="old"), REASONING, ANSWER)
    call = parse(store, previous_response_id="resp_1", instructions="new", input="and?")
    assert call.chat.prompt.messages == [
        {"role": "system", "content": "new"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo", "reasoning_content": "hm"},
        {"role": "user", "content": "and?"},
    ]
    assert call.kept is not None
    assert [item["content"][0]["text"] for item in msgspec.json.decode(call.kept.items)] == ["and?"]
    assert call.kept.previous is store.get(ME, "resp_1")


def test_sending_everything_again_makes_the_same_messages() -> None:
    """A client that keeps its own history gets the prompt of one that names the response."""
    store = store_with(parse(), REASONING, ANSWER)
    remembered = parse(store, previous_response_id="resp_1", input="and?").chat.prompt.messages
    again = parse(input=[{"role": "user", "content": "hi"}, REASONING, ANSWER, {"role": "user", "content": "and?"}])
    assert again.chat.prompt.messages == remembered


def test_a_reference_is_the_item_that_it_names() -> None:
    store = store_with(parse(), REASONING, ANSWER)
    call = parse(store, input=[{"type": "item_reference", "id": "msg_9"}, {"role": "user", "content": "x"}])
    assert call.chat.prompt.messages[0] == {"role": "assistant", "content": "yo"}
    with pytest.raises(NotFound) as caught:
        parse(store, input=[{"id": "msg_77"}])
    assert caught.value.field == "input[0].id"


def test_nothing_is_kept_when_it_shall_not_be() -> None:
    assert parse(store=False).kept is None
    assert parse(store=False).echo.store is False
    assert parse().echo.store is True


def test_a_last_message_of_the_assistants_is_not_continued() -> None:
    call = parse(input=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert call.chat.prompt.add_generation_prompt is True


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "user", "content": "x"}] * 5}, "input"),
        ({"input": [{"role": "assistant", "content": "x"}] * 5}, "input"),  # as messages they would be one
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_response_id": "resp_9"}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_logprobs": 6, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"include": "x"}, "include"),
        ({"truncation": "middle"}, "truncation"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"tools": [{"type": "function", "name": str(n)} for n in range(3)]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"instructions": 5}, "instructions"),
    ],
)
def test_an_unusable_field_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_obfuscation": False}},
        {"service_tier": "flex", "user": "u", "safety_identifier": "s", "prompt_cache_retention": "24h"},
        {"client_metadata": {"x": "y"}, "unheard_of": [1]},
        {"background": False, "conversation": None, "metadata": None, "truncation": "auto", "store": None},
        {"max_output_tokens": 128_000, "top_logprobs": 99},
    ],
)
def test_what_does_no_harm_is_accepted(fields: dict[str, Any]) -> None:
    parse(**fields)


@pytest.mark.parametrize(
    ("chat_field", "own_field"),
    [
        ("response_format.json_schema.schema", "text.format.schema"),
        ("response_format.type", "text.format.type"),
        ("messages[1]", "input[1]"),
        ("tools[0].function.parameters", "tools[1].parameters"),
        ("tools[1].function.name", "tools[2].tools[0].name"),
        ("tools[7].function.name", "tools[7].function.name"),
        ("temperature", "temperature"),
    ],
)
def test_chats_fields_are_named_as_they_are_here(chat_field: str, own_field: str) -> None:
    inner = [{"type": "custom", "name": "g"}]
    tools = [
        {"type": "web_search"},
        {"type": "function", "name": "f"},
        {"type": "namespace", "name": "n", "tools": inner},
    ]
    with pytest.raises(RequestError) as caught, responses_fields(parse(tools=tools).origins):
        raise RequestError(f"{chat_field} is odd", field=chat_field)
    assert (caught.value.field, str(caught.value)) == (own_field, f"{own_field} is odd")
