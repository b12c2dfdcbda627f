"""Tools all the way: the official client, the real parser, template, tokenizer and cache; only the words are given."""

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
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read_file", "list_files")
]
ASKED: Any = [{"role": "system", "content": "You help."}, {"role": "user", "content": "What is in a.txt?"}]
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n</tool_call>'
OTHER_CALL = '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>'


class LiveChat(Live):
    """A live server that is asked for ids, too."""

    @property
    def closing(self) -> list[int]:
        """Ids of the closing tag."""
        body = {"content": "</think>"}
        tokens: list[int] = httpx.post(f"{self.url}/tokenize", json=body).json()["tokens"]
        return tokens

    def ids(self, messages: Any) -> list[int]:
        body = {"messages": messages, "tools": TOOLS, "return_tokens": True}
        tokens: list[int] = httpx.post(f"{self.url}/apply-template", json=body).json()["tokens"]
        return tokens


@pytest.fixture(scope="module")
def live(tiny_smollm2_model: Model) -> Iterator[LiveChat]:
    made = LiveChat()
    with serving(tiny_smollm2_model, ENGINE, server=ServerConfig(port=0), adapt=made.adapt) as server:
        made.url = server.url
        yield made


@pytest.fixture
def client(live: LiveChat) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_a_tool_round_is_append_only(client: OpenAI, live: LiveChat) -> None:
    live.says(CALL, "It says hello.")
    first = client.chat.completions.create(model="m", messages=ASKED, tools=TOOLS, extra_body={"return_tokens": True})
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("read_file", {"path": "a.txt"})

    result = {"role": "tool", "tool_call_id": call.id, "content": "hello"}
    history = [*ASKED, message.model_dump(exclude_none=True), result]
    second = client.chat.completions.create(model="m", messages=history, tools=TOOLS)
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("It says hello.", "stop")

    spoken = first.model_dump()["choices"][0]["tokens"]
    known = [*live.ids(ASKED), *spoken]
    assert live.ids(history)[: len(known)] == known
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens == len(known)


@pytest.mark.parametrize("content", [None, "", ...])
@pytest.mark.parametrize("arguments", ['{"path": "a.txt"}', '{"path":"a.txt"}', '{"path": "\\u0061.txt"}'])
def test_what_agents_make_of_a_turn_changes_nothing(live: LiveChat, content: Any, arguments: str) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    turn = {"role": "assistant", "tool_calls": [call]} | ({} if content is ... else {"content": content})
    spoken = httpx.post(f"{live.url}/tokenize", json={"content": CALL}).json()["tokens"]
    known = [*live.ids(ASKED), *spoken]
    history = [*ASKED, turn, {"role": "tool", "tool_call_id": "x", "content": "hello"}]
    assert live.ids(history)[: len(known)] == known


def test_parallel_calls_are_put_together_by_the_clients_own_stream(client: OpenAI, live: LiveChat) -> None:
    live.says(f"Let me look.\n{CALL}\n{OTHER_CALL}")
    with client.chat.completions.stream(model="m", messages=ASKED, tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        choice = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    assert choice.message.tool_calls is not None
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("read_file", {"path": "a.txt"}), ("list_files", {})]
    assert len({call.id for call in choice.message.tool_calls}) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_told_apart(client: OpenAI, live: LiveChat, stream: bool) -> None:
    live.says("<think>\nHm.\n</think>\n\nHello.")
    reply = client.chat.completions.create(model="m", messages=ASKED, stream=stream)
    parts = [chunk.choices[0].delta for chunk in reply] if stream else [reply.choices[0].message]  # type: ignore[union-attr]
    assert "".join(part.content or "" for part in parts) == "Hello."
    extra = [(part.model_extra or {}).get("reasoning_content", "") for part in parts]
    assert "".join(extra) == "Hm."


@pytest.mark.parametrize(
    "broken",
    [
        '<tool_call>\n{"name": "read_file", "arguments": {"path": \n</tool_call>',
        '<tool_call>\n{"name": "no_such_tool", "arguments": {}}\n</tool_call>',
        "<tool_call>\nread_file(a.txt)\n</tool_call>",
    ],
)
def test_a_broken_call_is_never_an_empty_reply(client: OpenAI, live: LiveChat, broken: str) -> None:
    live.says(broken)
    choice = client.chat.completions.create(model="m", messages=ASKED, tools=TOOLS).choices[0]
    assert choice.message.content or choice.message.tool_calls
    for call in choice.message.tool_calls or ():
        assert call.type == "function"
        assert isinstance(json.loads(call.function.arguments), dict)


def test_two_choices_each_make_their_calls(client: OpenAI, live: LiveChat) -> None:
    live.says(CALL)
    choices = client.chat.completions.create(model="m", messages=ASKED, tools=TOOLS, n=2).choices
    assert [len(choice.message.tool_calls or ()) for choice in choices] == [1, 1]
    assert len({call.id for choice in choices for call in choice.message.tool_calls or ()}) == 2


def test_the_reply_goes_on_with_the_assistants_own_words(client: OpenAI, live: LiveChat) -> None:
    live.says(" is hello.")
    begun = [*ASKED, {"role": "assistant", "content": "In it"}]
    reply = client.chat.completions.create(model="m", messages=begun)
    assert reply.choices[0].message.content == " is hello."
    assert reply.usage is not None
    opened = httpx.post(f"{live.url}/apply-template", json={"messages": ASKED}).json()["prompt"]
    continued = httpx.post(f"{live.url}/apply-template", json={"messages": begun}).json()["prompt"]
    assert continued == opened + "In it"


def test_a_large_max_tokens_is_cut_down_to_the_context(client: OpenAI, live: LiveChat) -> None:
    for most in (65_536, 128_000):
        live.says("Hello.")
        assert client.chat.completions.create(model="m", messages=ASKED, max_tokens=most).choices[0].message.content


def test_reasoning_beyond_its_budget_is_closed_by_forced_tokens(live: LiveChat, client: OpenAI) -> None:
    thinking = [*ASKED, {"role": "assistant", "content": "<think>"}]
    closing = live.closing
    reply = client.chat.completions.create(
        model="m",
        messages=thinking,
        n=2,
        max_tokens=3 + len(closing) + 4,
        extra_body={"thinking_budget": 3, "return_tokens": True, "ignore_eos": True},
    )
    for choice in reply.model_dump()["choices"]:
        assert choice["tokens"][3 : 3 + len(closing)] == closing
        assert len(choice["tokens"]) == 3 + len(closing) + 4
        assert "think>" not in choice["message"]["content"]


SPACED = '<tool_call>\n{"arguments":  {"path" :"a.txt" },"name":"read_file"}\n</tool_call>'


def first_call(client: OpenAI, live: LiveChat, text: str, *, key: str = "none") -> tuple[list[int], dict[str, Any]]:
    """Known ids after a call, and the message that came of it."""
    live.says(text)
    reply = client.with_options(api_key=key).chat.completions.create(
        model="m", messages=ASKED, tools=TOOLS, extra_body={"return_tokens": True}
    )
    tokens = reply.model_dump()["choices"][0]["tokens"]
    return [*live.ids(ASKED), *tokens], reply.choices[0].message.model_dump(exclude_none=True)


def restored(client: OpenAI, message: dict[str, Any], *, key: str = "none") -> int:
    """Cached tokens of the call that gives the tool's result back."""
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "hello"}
    history: Any = [*ASKED, message, result]
    reply = client.with_options(api_key=key).chat.completions.create(
        model="m", messages=history, tools=TOOLS, max_tokens=1
    )
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    return reply.usage.prompt_tokens_details.cached_tokens or 0


def rewritten(message: dict[str, Any], arguments: str) -> dict[str, Any]:
    (call,) = message["tool_calls"]
    return {**message, "tool_calls": [{**call, "function": {**call["function"], "arguments": arguments}}]}


@pytest.mark.parametrize("text", [SPACED, f"Let me see. {SPACED}"])
def test_a_call_that_comes_back_rewritten_is_restored_to_its_end(client: OpenAI, live: LiveChat, text: str) -> None:
    known, message = first_call(client, live, text)
    assert restored(client, rewritten(message, '{"path":"a.txt"}')) == len(known)


def test_a_call_that_comes_back_with_other_arguments_is_read_anew(client: OpenAI, live: LiveChat) -> None:
    known, message = first_call(client, live, SPACED.replace("a.txt", "first.txt"))
    assert len(live.ids(ASKED)) <= restored(client, rewritten(message, '{"path":"other.txt"}')) < len(known)


def test_a_call_belongs_to_the_key_that_it_was_made_for(client: OpenAI, live: LiveChat) -> None:
    known, message = first_call(client, live, SPACED.replace("a.txt", "mine.txt"), key="mine")
    assert len(live.ids(ASKED)) <= restored(client, message, key="other") < len(known)
    assert restored(client, message, key="mine") == len(known)
