"""The rewrites on a whole server, in every protocol: what is restored, what is told, and what replies are held to."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from anchorline.bench import agent
from anchorline.config import EngineConfig, ServerConfig
from anchorline.llama.model import Model
from tests.support.serving import LiveServer, serving

ENGINE = EngineConfig(parallel=1, resident_idle=1, cache_ram_bytes=64 << 20)
FLAGS = ServerConfig(port=0, float_volatile=True, canonical_tools=True)

Body = dict[str, Any]


@pytest.fixture(scope="module")
def live(spelling_model: Model) -> Iterator[LiveServer]:
    with serving(spelling_model, ENGINE, context_tokens=32768, server=FLAGS) as server:
        yield server


def head(name: str, minute: int) -> str:
    return f"You are {name}.\nIt is 14:{minute:02} now.\n{agent.SYSTEM}"


def tools(*, reverse: bool, name: str) -> list[Body]:
    """The same functions in one order or the other, the keys of each too; ``name`` keeps protocols apart."""
    made = [{**tool["function"], "description": f"{name}: {tool['function']['description']}"} for tool in agent.TOOLS]
    return [dict(reversed(tool.items())) for tool in reversed(made)] if reverse else made


def chat(minute: int, *, second: bool) -> tuple[str, Body]:
    talk = [agent.user("One?"), *([agent.assistant("Yes."), agent.user("Two?")] if second else [])]
    body = agent.chat_body(talk, max_tokens=1, system=head("chat", minute))
    body["tools"] = [{"type": "function", "function": each} for each in tools(reverse=second, name="chat")]
    return "/v1/chat/completions", body


def messages(minute: int, *, second: bool) -> tuple[str, Body]:
    _, body = chat(minute, second=second)
    asked = tools(reverse=second, name="messages")
    renamed = [{("input_schema" if key == "parameters" else key): each[key] for key in each} for each in asked]
    system = head("messages", minute)
    return "/v1/messages", {
        "model": "m",
        "max_tokens": 1,
        "system": system,
        "messages": body["messages"][1:],
        "tools": renamed,
    }


def responses(minute: int, *, second: bool) -> tuple[str, Body]:
    _, body = chat(minute, second=second)
    asked = [{"type": "function", **each} for each in tools(reverse=second, name="responses")]
    return "/v1/responses", {
        "model": "m",
        "max_output_tokens": 16,
        "instructions": head("responses", minute),
        "input": body["messages"][1:],
        "tools": asked,
    }


def post(live: LiveServer, path: str, body: Body) -> Body:
    answer = httpx.post(live.url + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    decoded: Body = answer.json()
    return decoded


@pytest.mark.parametrize("protocol", [chat, messages, responses])
def test_a_turn_whose_clock_and_tools_changed_prefills_only_what_is_new(
    live: LiveServer, caplog: pytest.LogCaptureFixture, protocol: Any
) -> None:
    caplog.set_level(logging.INFO, logger="anchorline.request")
    for minute, second in ((1, False), (7, True)):
        post(live, *protocol(minute, second=second))
    lines = [record.getMessage() for record in caplog.records if "plan=" in record.getMessage()]
    first, then = (dict(pair.split("=", 1) for pair in line.split(" ") if "=" in pair) for line in lines)
    assert int(then["prefilled"]) < 100 < int(first["prompt"])
    assert first["rewritten"].startswith("float-volatile")
    assert then["rewritten"] == "float-volatile,canonical-tools"
    assert int(then["floated"]) > 0


def test_a_reply_and_the_metrics_say_what_was_rewritten(live: LiveServer) -> None:
    told = post(live, *chat(3, second=False))["timings"]["rewritten"]
    assert told["floated_lines"] == 1
    assert told["floated_n"] > 0
    assert told["pinned_date"] is None
    assert httpx.get(f"{live.url}/cache/requests").json()["data"][0]["rewritten"] == told
    assert post(live, "/cache/explain", chat(3, second=False)[1])["rewritten"] == told
    metrics = httpx.get(f"{live.url}/metrics").text
    assert 'anchorline_rewritten_calls_total{rewrite="float-volatile"}' in metrics
    assert "anchorline_floated_tokens_total" in metrics


def test_what_counts_and_what_is_pinned_is_what_a_call_has(live: LiveServer) -> None:
    path, body = messages(5, second=False)
    body["system"] = head("an anchor", 5)
    counted = post(live, f"{path}/count_tokens", {key: body[key] for key in ("model", "system", "messages", "tools")})
    asked = chat(5, second=False)[1]
    anchor = {"tools": asked["tools"], "messages": [{"role": "system", "content": head("an anchor", 1)}]}
    pinned = post(live, "/cache/anchors", anchor)
    asked["messages"][0]["content"] = head("an anchor", 8)
    assert post(live, "/v1/chat/completions", asked)["timings"]["cache_n"] >= pinned["tokens"] > 100
    usage = post(live, path, body)["usage"]
    inputs = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert counted["input_tokens"] == sum(usage[name] or 0 for name in inputs)


def test_nothing_is_said_of_a_call_that_is_rendered_as_sent(live: LiveServer) -> None:
    body = agent.chat_body([agent.user("Hello")], max_tokens=1, tools=False)
    assert "rewritten" not in post(live, "/v1/chat/completions", body)["timings"]
    assert httpx.get(f"{live.url}/cache/requests").json()["data"][0]["rewritten"] is None


def test_a_forced_call_keeps_to_the_schema_as_it_was_sent(live: LiveServer) -> None:
    schema = {
        "type": "object",
        "$defs": {"size": {"enum": [2, 1]}},
        "properties": {"zeta": {"$ref": "#/$defs/size"}, "alpha": {"type": "boolean"}},
        "required": ["zeta", "alpha"],
        "additionalProperties": False,
    }
    function = {"name": "choose", "strict": True, "parameters": schema}
    body = {
        "messages": [agent.user("Choose.")],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 200,
        "temperature": 0,
    }
    (call,) = post(live, "/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert list(arguments) == ["zeta", "alpha"]
    assert arguments["zeta"] in (2, 1)
    assert isinstance(arguments["alpha"], bool)
