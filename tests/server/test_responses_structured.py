"""Structured output of ``/v1/responses``, through the official client and a model that knows nothing of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, ConfigDict

from anchorline.config import EngineConfig
from anchorline.llama.model import Model
from tests.support.serving import serving


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    right: bool
    sure: Literal["yes", "no"]


@pytest.fixture(scope="module")
def client(tiny_smollm2_model: Model) -> Iterator[OpenAI]:
    config = EngineConfig(parallel=1, cache_ram_bytes=64 << 20)
    with (
        serving(tiny_smollm2_model, config, context_tokens=2048) as live,
        OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as made,
    ):
        yield made


def test_a_reply_is_parsed_by_the_client(client: OpenAI) -> None:
    reply = client.responses.parse(model="m", input="Is it?", text_format=Answer, temperature=0, max_output_tokens=64)
    assert isinstance(reply.output_parsed, Answer)


def test_a_stream_keeps_to_the_schema(client: OpenAI) -> None:
    with client.responses.stream(model="m", input="Is it?", text_format=Answer, max_output_tokens=64) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Answer)


def test_any_object(client: OpenAI) -> None:
    shape: Any = {"format": {"type": "json_object"}}
    reply = client.responses.create(model="m", input="JSON", text=shape, temperature=0, max_output_tokens=256)
    if reply.status == "completed":  # a model of two layers may not find the end
        assert isinstance(json.loads(reply.output_text), dict)


def test_a_schema_that_is_none_is_refused_by_its_own_name(client: OpenAI) -> None:
    shape: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "objekt"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input="x", text=shape)
    assert caught.value.param is not None
    assert caught.value.param.startswith("text.format.schema")
