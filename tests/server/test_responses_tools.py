"""Tools and reasoning of ``/v1/responses`` all the way: client, parser, template, tokenizer and cache are real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from anchorline.config import EngineConfig, ServerConfig
from anchorline.llama.model import Model
from tests.support.saying import Live
from tests.support.serving import serving

ENGINE = EngineConfig(parallel=2, resident_idle=2, cache_ram_bytes=256 << 20)
TOOLS: Any = [
    {"type": "web_search"},
    {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "custom", "name": "patch", "description": "Changes files."},
    {"type": "namespace", "name": "agents", "description": "Others.", "tools": [{"type": "function", "name": "ask"}]},
]
ASKED: Any = [{"role": "user", "content": "What is in a.txt?"}]
READ = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n</tool_call>'
PATCH = '<tool_call>\n{"name": "patch", "arguments": {"input": "+ \\"hé\\"\\n"}}\n</tool_call>'
ASK = '<tool_call>\n{"name": "agents__ask", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def live(tiny_smollm2_model: Model) -> Iterator[Live]:
    made = Live()
    with serving(tiny_smollm2_model, ENGINE, server=ServerConfig(port=0), adapt=made.adapt) as server:
        made.url = server.url
        yield made


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.mark.parametrize("remembered", [True, False])
def test_a_tool_round_is_append_only(client: OpenAI, live: Live, remembered: bool) -> None:
    asked: Any = [{"role": "user", "content": f"What is in a.txt? {remembered}"}]
    live.says(READ, "It says hello.")
    first = client.responses.create(model="m", input=asked, tools=TOOLS, instructions="You help.", store=remembered)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("read_file", {"path": "a.txt"})
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "hello"}
    more: dict[str, Any] = {"input": [*asked, *first.output, result]}
    if remembered:
        more = {"input": [result], "previous_response_id": first.id}
    second = client.responses.create(model="m", tools=TOOLS, instructions="You help.", **more)
    assert second.output_text == "It says hello."
    assert first.usage is not None
    assert second.usage is not None
    known = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens == known


def test_custom_and_namespaced_tools_are_called_by_their_own_names(client: OpenAI, live: Live) -> None:
    live.says(f"I change it.\n{PATCH}\n{ASK}")
    with client.responses.stream(model="m", input=ASKED, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        message, patch, ask = stream.get_final_response().output
    assert "response.custom_tool_call_input.done" in kinds
    assert message.type == "message"
    assert patch.type == "custom_tool_call"
    assert (patch.name, patch.input) == ("patch", '+ "hé"\n')
    assert ask.type == "function_call"
    assert (ask.name, ask.namespace, ask.arguments) == ("ask", "agents", "{}")


def test_reasoning_comes_back_as_the_client_sends_it(client: OpenAI, live: Live) -> None:
    live.says(f"<think>\nHm.\n</think>\n\n{READ}")
    include: Any = ["reasoning.encrypted_content"]
    first = client.responses.create(model="m", input=ASKED, tools=TOOLS, store=False, include=include)
    reasoning, call = first.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Hm."
    assert call.type == "function_call"
    # As Codex does: the text is left out, the encrypted content is sent.
    sent: Any = [
        {"type": "reasoning", "summary": [], "encrypted_content": reasoning.encrypted_content},
        call,
        {"type": "function_call_output", "call_id": call.call_id, "output": "hello"},
    ]
    plain: Any = [{"type": "reasoning", "id": "r", "summary": [], "content": reasoning.content}, *sent[1:]]
    prompts = []
    for items in (sent, plain):
        live.says("Done.")
        reply = client.responses.create(model="m", input=[*ASKED, *items], tools=TOOLS, store=False)
        assert reply.usage is not None
        prompts.append((reply.usage.input_tokens, reply.usage.input_tokens_details.cached_tokens))
    (length, _), (again, cached) = prompts
    assert (again, cached) == (length, length - 1)


def test_no_tool_is_called_when_none_may_be(client: OpenAI, live: Live) -> None:
    live.says(READ)
    reply = client.responses.create(model="m", input=ASKED, tools=TOOLS, tool_choice="none")
    assert reply.output_text == READ


def test_a_last_message_of_the_assistants_is_a_whole_turn(client: OpenAI, live: Live) -> None:
    """Chat would go on with it; here the reply is a turn of its own, as the prompt without it has one."""
    begun: Any = [*ASKED, {"role": "assistant", "content": "In it"}]
    lengths = []
    for given in (ASKED, begun):
        live.says("Hello.")
        reply = client.responses.create(model="m", input=given, tools=TOOLS, store=False)
        assert reply.output_text == "Hello."
        assert reply.usage is not None
        lengths.append(reply.usage.input_tokens)
    text = httpx.post(f"{live.url}/tokenize", json={"content": "In it"}).json()["tokens"]
    assert lengths[1] - lengths[0] > len(text)
