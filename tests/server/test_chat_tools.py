"""Chat completions with tools and reasoning over ASGI, over a reply format with single-character markers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.standin import CONTROL
from tests.server.support import Site, site

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent / "golden"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "take")
]
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
Answers = Callable[[str, list[str]], tuple[dict[str, Any], list[dict[str, Any]]]]
PIECES = ["(", ")", "[look|", "[", "]", "{", "a", "b", '"']
REPLY = b'(Hm.)So:[look|{"a":1}][take|{}]'


async def post(here: Site, **fields: Any) -> httpx.Response:
    async with here.client() as client:
        return await client.post("/v1/chat/completions", json=BODY | fields)


async def message(here: Site, **fields: Any) -> dict[str, Any]:
    response = await post(here, **fields)
    assert response.status_code == 200, response.text
    return dict(response.json()["choices"][0]["message"])


async def test_calls_and_reasoning_are_told_apart(here: Site) -> None:
    here.engine.script.reply = REPLY
    choice = (await post(here)).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "So:",
        "refusal": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}},
            {"id": "call00002", "type": "function", "function": {"name": "take", "arguments": "{}"}},
        ],
    }


@pytest.mark.parametrize("name", ["chat_tools", "chat_tools_usage"])
async def test_the_stream_of_calls_is_the_golden_transcript(here: Site, name: str) -> None:
    here.engine.script.reply = b'(H)S[look|{"a":1}]'
    fields: dict[str, Any] = {"stream": True}
    if name == "chat_tools_usage":
        fields |= {"stream_options": {"include_usage": True}, "n": 2, "return_tokens": True}
    assert (await post(here, **fields)).text == (GOLDEN / f"{name}.sse").read_text()


@pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}])
async def test_without_tools_to_call_a_call_is_text_and_reasoning_still_reasoning(
    here: Site, fields: dict[str, Any]
) -> None:
    here.engine.script.reply = REPLY
    reply = await message(here, **fields)
    assert reply["content"] == 'So:[look|{"a":1}][take|{}]'
    assert reply["reasoning_content"] == "Hm."
    assert "tool_calls" not in reply


async def test_a_call_to_an_unknown_tool_is_text(here: Site) -> None:
    here.engine.script.reply = b"[fly|{}]"
    choice = (await post(here)).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("[fly|{}]", "stop")


async def test_a_reply_cut_off_in_a_call_ends_by_length(here: Site) -> None:
    here.engine.script.reply = b'[look|{"a":1}]'
    choice = (await post(here, max_tokens=9)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a'


async def test_the_parser_sees_how_the_prompt_ends(here: Site) -> None:
    here.engine.script.reply = b"Hm.)So"
    reply = await message(here, messages=[{"role": "assistant", "content": "("}])
    assert (reply["reasoning_content"], reply["content"]) == ("Hm.", "So")


async def test_only_the_control_tokens_that_the_format_needs_are_spelled(here: Site) -> None:
    here.engine.script.reply = [CONTROL["<|im_start|>"], ord("a"), CONTROL["<|bos|>"], ord("b")]
    assert (await message(here))["content"] == "<|im_start|>ab"
    async with here.client() as client:
        reply = (await client.post("/v1/completions", json={"prompt": "x"})).json()
    assert reply["choices"][0]["text"] == "ab"


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    """The whole choice and the streamed choices of one reply of the engine's."""
    loop = asyncio.new_event_loop()
    with site() as here:

        def ask(reply: str, stop: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            here.engine.script.reply = reply.encode()
            fields = {"stop": stop, "return_tokens": True}
            whole = loop.run_until_complete(post(here, **fields)).json()["choices"][0]
            streamed = loop.run_until_complete(post(here, stream=True, **fields)).text
            events = [event.removeprefix("data: ") for event in streamed.split("\n\n")]
            return whole, [json.loads(event)["choices"][0] for event in events if event not in ("", "[DONE]")]

        yield ask
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@settings(deadline=None)
@given(
    reply=st.lists(st.sampled_from(["(", ")", "[look|", "[", "]", "{", "a", "b", '"']), min_size=1, max_size=20).map(
        "".join
    ),
    stop=st.lists(st.sampled_from(["a", "]", '"b', ")("]), max_size=2),
)
def test_streamed_and_whole_replies_agree(answers: Answers, reply: str, stop: list[str]) -> None:
    whole, chunks = answers(reply, stop)
    said: dict[str, Any] = {"content": "", "reasoning_content": "", "tokens": [], "finish_reason": None}
    calls: list[dict[str, str]] = []
    for choice in chunks:
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            said[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append({"name": call["function"]["name"], "arguments": ""})
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
        said["tokens"] += choice.get("tokens", [])
        said["finish_reason"] = choice["finish_reason"] or said["finish_reason"]
    assert said["content"] == (whole["message"]["content"] or "")
    assert said["reasoning_content"] == whole["message"].get("reasoning_content", "")
    assert calls == [call["function"] for call in whole["message"].get("tool_calls", ())]
    assert (said["tokens"], said["finish_reason"]) == (whole["tokens"], whole["finish_reason"])


async def test_the_reasoning_may_stay_in_the_content(here: Site) -> None:
    here.engine.script.reply = REPLY
    reply = await message(here, reasoning_format="none")
    assert reply["content"] == "(Hm.)So:"
    assert len(reply["tool_calls"]) == 2
    assert "reasoning_content" not in reply
    here.engine.script.reply = b"Hm.)So"
    reply = await message(here, reasoning_format="none", messages=[{"role": "assistant", "content": "("}])
    assert reply["content"] == "Hm.)So"


@pytest.mark.parametrize(
    ("begun", "reasoning", "content"),
    [("(", "Hm.", "So"), ("(Let me see. ", "Hm.", "So"), ("(Hm.)", None, "Hm.)So"), ("x", None, "Hm.)So")],
)
async def test_a_reply_may_go_on_within_its_reasoning(
    here: Site, begun: str, reasoning: str | None, content: str
) -> None:
    here.engine.script.reply = b"Hm.)So"
    reply = await message(here, messages=[{"role": "assistant", "content": begun}], thinking_budget=100)
    assert (reply.get("reasoning_content"), reply["content"]) == (reasoning, content)


@pytest.mark.parametrize("field", ["thinking_budget", "reasoning_budget", "thinking_budget_tokens"])
async def test_a_block_that_has_used_up_its_budget_is_closed(here: Site, field: str) -> None:
    here.engine.script.reply = b"(thoughts"
    reply = await message(here, **{field: 3})
    assert (reply["content"], reply["reasoning_content"]) == ("ughts", "tho")
    reply = await message(here, **{field: -1})
    assert reply["reasoning_content"] == "thoughts"


async def test_a_budget_of_nothing_closes_the_block_that_the_prompt_opened(here: Site) -> None:
    here.engine.script.reply = b"abc"
    reply = await message(here, messages=[{"role": "assistant", "content": "("}], thinking_budget=0, n=2)
    assert reply["content"] == "abc"
    assert "reasoning_content" not in reply
