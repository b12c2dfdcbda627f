"""Structured output over HTTP: the official client against a live server with a small real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from anchorline.config import EngineConfig, ServerConfig
from anchorline.llama.model import Model
from tests.support.serving import serving

ENGINE = EngineConfig(parallel=2, queue=4, resident_idle=1, cache_ram_bytes=64 << 20)
MESSAGES: Any = [{"role": "user", "content": "Plan a trip."}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {"nights": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["nights"],
            "additionalProperties": False,
        },
    },
}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look"}}


class Stay(BaseModel):
    place: str = Field(max_length=20)
    nights: int = Field(ge=1, le=99)


class Trip(BaseModel):
    kind: Literal["train", "boat"]
    stays: list[Stay] = Field(min_length=1, max_length=2)


@pytest.fixture(scope="module")
def url(tiny_smollm2_model: Model) -> Iterator[str]:
    with serving(tiny_smollm2_model, ENGINE, context_tokens=4096, server=ServerConfig(port=0)) as live:
        yield live.url


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def ask(url: str, **fields: Any) -> str:
    body = {"messages": MESSAGES, "seed": 1, "max_tokens": 500} | fields
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "stop"
    content: str = choice["message"]["content"]
    return content


def test_the_official_client_parses_a_reply_into_a_model(client: OpenAI) -> None:
    reply = client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Trip, max_tokens=500, seed=2)
    trip = reply.choices[0].message.parsed
    assert isinstance(trip, Trip)
    assert 1 <= len(trip.stays) <= 2


def test_streamed_replies_parse_too(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="m", messages=MESSAGES, response_format=Trip, max_tokens=500, seed=3
    ) as stream:
        stream.until_done()
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Trip)


def test_several_choices_all_parse(client: OpenAI) -> None:
    reply = client.chat.completions.parse(
        model="m", messages=MESSAGES, response_format=Trip, max_tokens=500, n=2, temperature=1.5, seed=5
    )
    trips = [choice.message.parsed for choice in reply.choices]
    assert all(isinstance(trip, Trip) for trip in trips)
    assert trips[0] != trips[1]


def test_extension_fields(url: str) -> None:
    assert ask(url, guided_choice=["yes", "no"]) in ("yes", "no")
    assert ask(url, structured_outputs={"regex": "[0-9]{4}"}).isdigit()
    assert ask(url, grammar='root ::= "a" [bc] "d"') in ("abd", "acd")
    assert ask(url, json_schema={"const": [1, "x"]}, temperature=0).replace(" ", "").replace("\n", "") == '[1,"x"]'
    assert isinstance(
        json.loads(ask(url, response_format={"type": "json_schema", "schema": {"type": "boolean"}})), bool
    )


def test_text_completions_are_constrained_too(url: str) -> None:
    body = {"prompt": "Well:", "guided_choice": ["yes", "no"], "seed": 1}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()
    assert reply["choices"][0]["text"] in ("yes", "no")


def test_forced_calls_are_made(client: OpenAI) -> None:
    def calls(**options: Any) -> list[tuple[str, Any]]:
        reply = client.chat.completions.create(
            model="m", messages=MESSAGES, seed=1, max_tokens=900, temperature=0.7, **options
        )
        choice = reply.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        made = choice.message.tool_calls or []
        return [(call.function.name, json.loads(call.function.arguments)) for call in made if call.type == "function"]

    (only,) = calls(tools=[TOOL, LOOK], tool_choice="required", parallel_tool_calls=False)
    assert only[0] in ("book", "look")
    assert calls(tools=[TOOL, LOOK], tool_choice="required")
    named = {"type": "function", "function": {"name": "book"}}
    ((name, arguments),) = calls(tools=[TOOL, LOOK], tool_choice=named)
    assert name == "book"
    assert 1 <= arguments["nights"] <= 9


def test_streamed_forced_calls(client: OpenAI) -> None:
    tools: Any = [TOOL]
    with client.chat.completions.stream(
        model="m", messages=MESSAGES, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=4
    ) as stream:
        stream.until_done()
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert 1 <= json.loads(call.function.arguments)["nights"] <= 9


def test_an_answer_or_a_call_may_come(url: str) -> None:
    """Never anything else, whatever the sampler draws."""
    form = {"type": "json_schema", "schema": {"type": "array", "maxItems": 2, "items": {"enum": ["a", "b"]}}}
    strict = TOOL | {"function": TOOL["function"] | {"strict": True}}
    options = {"tools": [strict], "parallel_tool_calls": False, "response_format": form, "temperature": 2.0}
    for seed in range(4):
        body = {"messages": MESSAGES, "max_tokens": 200, "seed": seed} | options
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()
        message = reply["choices"][0]["message"]
        if message["content"]:
            assert set(json.loads(message["content"])) <= {"a", "b"}
        else:
            (call,) = message["tool_calls"]
            assert 1 <= json.loads(call["function"]["arguments"])["nights"] <= 9


def test_tools_are_rendered_whatever_the_choice(url: str) -> None:
    """So the head of the prompt, which is kept, stays the same."""

    def prompt_tokens(**fields: Any) -> int:
        body = {"messages": MESSAGES, "tools": [TOOL], "max_tokens": 1} | fields
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()
        tokens: int = reply["usage"]["prompt_tokens"]
        return tokens

    counts = {prompt_tokens(tool_choice=choice) for choice in ("auto", "none", "required")}
    assert counts == {prompt_tokens()}


def test_a_bad_schema_is_a_400_with_its_path(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES, response_format=form)
    assert caught.value.param == "response_format.json_schema.schema.properties.x.pattern"
    assert caught.value.code == "invalid_schema"
    bad = {"type": "function", "function": {"name": "t", "parameters": {"properties": {"q": {"type": "x"}}}}}
    tools: Any = [TOOL, bad]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES, tools=tools, tool_choice="required")
    assert caught.value.param == "tools[1].function.parameters.properties.q.type"


def test_keywords_that_cannot_be_enforced_are_refused_only_if_strict(url: str) -> None:
    schema = {"type": "integer", "minimum": 1, "maximum": 5, "not": {"const": 3}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert 1 <= int(ask(url, response_format=form)) <= 5
    form["json_schema"]["strict"] = True  # type: ignore[index]
    body = {"messages": MESSAGES, "response_format": form}
    refused = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "response_format.json_schema.schema.not"
