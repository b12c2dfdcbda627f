"""Structured output and forced tools of Messages, with the official client over a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import MessageParam
from pydantic import BaseModel

from anchorline.config import EngineConfig
from anchorline.llama.model import Model
from tests.support.serving import serving

MESSAGES: list[MessageParam] = [{"role": "user", "content": "hi"}]


class Answer(BaseModel):
    sure: bool
    shelf: Literal["left", "right"]


@pytest.fixture(scope="module")
def client(tiny_smollm2_model: Model) -> Iterator[Anthropic]:
    with (
        serving(tiny_smollm2_model, EngineConfig(cache_ram_bytes=64 << 20)) as live,
        Anthropic(base_url=live.url, api_key="none", max_retries=0) as made,
    ):
        yield made


def test_the_client_parses_what_keeps_to_its_schema(client: Anthropic) -> None:
    reply = client.messages.parse(
        model="any", max_tokens=400, messages=MESSAGES, output_format=Answer, extra_body={"temperature": 0}
    )
    assert reply.stop_reason == "end_turn"
    assert isinstance(reply.parsed_output, Answer)


def test_a_tool_that_must_be_called_is_called(client: Anthropic) -> None:
    reply = client.messages.create(
        model="any",
        max_tokens=400,
        messages=MESSAGES,
        tools=[
            {
                "name": "find",
                "input_schema": {
                    "type": "object",
                    "properties": {"sure": {"type": "boolean"}},
                    "required": ["sure"],
                    "additionalProperties": False,
                },
            }
        ],
        tool_choice={"type": "tool", "name": "find", "disable_parallel_tool_use": True},
    )
    (block,) = reply.content
    assert block.type == "tool_use"
    assert (block.name, set(block.input)) == ("find", {"sure"})
    assert reply.stop_reason == "tool_use"


def test_a_schema_that_cannot_be_used_is_named_as_it_was_sent(client: Anthropic) -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"x": {"type": "nope"}}}
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema\.properties\.x\.type"):
        client.messages.create(
            model="any",
            max_tokens=5,
            messages=MESSAGES,
            output_config={"format": {"type": "json_schema", "schema": schema}},
        )
