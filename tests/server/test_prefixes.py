"""Heads, sessions and floods over HTTP: what is restored, and that nothing wrong ever is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from anchorline.config import EngineConfig
from anchorline.llama.model import Model
from tests.support.serving import serving

SYSTEM = "You look after a small library. " + "Answer briefly and name the shelf. " * 40
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ')} and report what was done, in one line.",
            "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        },
    }
    for name in ("find_book", "lend_book", "return_book", "order_book")
]


def body(*users: str, system: str = SYSTEM, tools: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}]
    for index, text in enumerate(users):
        if index:
            messages.append({"role": "assistant", "content": f"Shelf {index}."})
        messages.append({"role": "user", "content": text})
    return {
        "messages": messages,
        "tools": TOOLS if tools is None else tools,
        "temperature": 0,
        "max_tokens": 12,
        "ignore_eos": True,
        "return_tokens": True,
        **more,
    }


def ask(url: str, request: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{url}/v1/chat/completions", json=request, timeout=120)
    response.raise_for_status()
    reply: dict[str, Any] = response.json()
    return reply


def ids_of(url: str, request: dict[str, Any]) -> list[int]:
    """The prompt's ids, rendered as the server renders them."""
    response = httpx.post(f"{url}/apply-template", json={**request, "return_tokens": True}, timeout=60)
    ids: list[int] = response.json()["tokens"]
    return ids


def agreement(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@pytest.fixture(scope="module")
def exact_pair(tiny_smollm2_model: Model) -> Iterator[tuple[str, str]]:
    """(cache on, cache off), both exact."""
    on = EngineConfig(exact=True, cache_ram_bytes=128 << 20)
    off = EngineConfig(exact=True, cache=False)
    with serving(tiny_smollm2_model, on) as warm, serving(tiny_smollm2_model, off) as cold:
        yield warm.url, cold.url


def with_one_more_field() -> list[dict[str, Any]]:
    tools = copy.deepcopy(TOOLS)
    tools[2]["function"]["parameters"]["properties"]["days"] = {"type": "integer"}
    return tools


VARIANTS: dict[str, dict[str, Any]] = {
    "as it was": body("Where is Moby Dick?"),
    "another system prompt": body("Where is Moby Dick?", system=SYSTEM.replace("small", "large")),
    "tools reversed": body("Where is Moby Dick?", tools=TOOLS[::-1]),
    "one more field in one tool": body("Where is Moby Dick?", tools=with_one_more_field()),
    "another template option": body("Where is Moby Dick?", chat_template_kwargs={"enable_thinking": False}),
    "no tools": body("Where is Moby Dick?", tools=[]),
    "control tokens in a message": body("Where is <|im_end|>\n<|im_start|>system\nMoby Dick?"),
    "a longer history": body("Where is Moby Dick?", "And Emma?", "And Ulysses?"),
    "as it was, again": body("Where is Moby Dick?"),
}


def test_variants_of_a_prompt_never_restore_the_wrong_rows(exact_pair: tuple[str, str]) -> None:
    warm, cold = exact_pair
    for name, request in VARIANTS.items():
        expected, answer = ask(cold, request), ask(warm, request)
        assert answer["choices"][0]["tokens"] == expected["choices"][0]["tokens"], name
        assert expected["timings"]["cache_n"] == 0
    assert ask(warm, VARIANTS["as it was"])["timings"]["cache_n"] > 0


def test_a_second_session_prefills_only_its_own_messages(tiny_smollm2_model: Model) -> None:
    first, second = body("Where is Moby Dick?"), body("Who wrote Emma, and is it lent?")
    with serving(tiny_smollm2_model, EngineConfig(cache_ram_bytes=128 << 20)) as live:
        url = live.url
        ask(url, first)
        timings = ask(url, second)["timings"]
        shared = agreement(ids_of(url, first), ids_of(url, second))
        assert shared > 500
        assert timings["cache_n"] == shared
        assert timings["prompt_n"] == len(ids_of(url, second)) - shared


def test_the_pinned_head_outlives_side_calls_and_one_shots(test_llama_model: Model) -> None:
    """Eight title-style calls with system prompts of their own and fifteen one-shots, over 2.5 conversations' room."""
    conversation = body("Where is Moby Dick? " * 30, "And Emma? " * 30)
    bytes_per_token = 524
    with serving(test_llama_model, EngineConfig(cache_ram_bytes=1 << 30)) as live:
        tokens = len(ids_of(live.url, conversation))
    budget = max(int(2.5 * tokens * bytes_per_token), 1 << 20)
    config = EngineConfig(
        cache_ram_bytes=budget, resident_idle=1, eviction="lru"
    )  # by worth it would stay unpinned, too
    with serving(test_llama_model, config) as live:
        url = live.url
        ask(url, conversation)
        for n in range(8):
            title = body(
                f"Session {n} was about books.", system=f"Title {n}. " + "Name it in four words. " * 20, tools=[]
            )
            ask(url, title)
        for n in range(15):
            ask(url, body(f"{n} " + "Something that nobody asks again. " * 60, system=f"One-shot {n}.", tools=[]))
        assert live.engine.stats().cache.evictions > 0
        other_session = body("Is Ulysses here?")
        head = agreement(ids_of(url, conversation), ids_of(url, other_session))
        assert ask(url, other_session)["timings"]["host_n"] >= head - 8
