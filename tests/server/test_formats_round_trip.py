"""Tool rounds in the formats of several families, live: what is generated is never prefilled again.

The server, template, vocabulary and cache are real, with random weights; only the words are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from anchorline.config import EngineConfig, ModelConfig, ServerConfig
from anchorline.llama.model import load_model
from anchorline.server.state import ServerState
from tests.prompt.speaking import TOOLS, Message, results_of, rewritten
from tests.support.families import BUILT_IN, FAMILIES, Call, Family
from tests.support.saying import SayingEngine, Seals
from tests.support.serving import serving

ENGINE = EngineConfig(parallel=2, resident_idle=2, cache_ram_bytes=64 << 20)
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
START: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is in the file?"},
]
READ: Call = ("read_file", {"path": "notes of the day.txt", "line": 7})
LIST: Call = ("list_files", {"path": "/", "exact": True})
KEEP_REASONING = ("gemma4",)
"""Families whose templates show the reasoning of calls for good."""
GENERATION_PROMPT = 40
"""Tokens that a generation prompt has at most."""
FORMATS = ("hermes", "qwen-xml", "mistral", "mistral-named", "harmony", "glm", "kimi", "gemma4", "deepseek-v3.1")
TEMPLATES = ("built-in gemma", "built-in mistral-v3")
"""That are built in; the others differ from ChatML's in their marks alone."""


class Live:
    """A live server of one family, over its official route."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.client = httpx.Client()
        self.sealed_turns = 0
        self._engine: SayingEngine | None = None

    def adapt(self, state: ServerState) -> ServerState:
        self.sealed_turns = state.sealed_turns
        self._engine = SayingEngine(state.engine, state)
        return replace(state, engine=self._engine)

    @property
    def seals(self) -> Seals:
        assert self._engine is not None
        return self._engine.seals

    def says(self, messages: list[Message], *, content: str = "", calls: tuple[Call, ...] = ()) -> Reply:
        """The reply to ``messages``, which says this."""
        assert self._engine is not None
        reasoning = "Hm, the file." if self.family.shows_reasoning and calls else ""
        self._engine.texts.append(self.family.says(reasoning, content, list(calls)))
        body = {"model": "m", "messages": messages, "tools": TOOLS, "return_tokens": True, "max_tokens": 500}
        answer = self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        reply = Reply(answer.json(), self.ids(messages))
        assert len(reply.message.get("tool_calls") or ()) == len(calls), reply.message
        return reply

    def ids(self, messages: list[Message]) -> list[int]:
        body = {"messages": messages, "tools": TOOLS, "return_tokens": True}
        tokens: list[int] = self.client.post("/apply-template", json=body).json()["tokens"]
        return tokens


class Reply:
    """What the server answered, and the ids of prompt and reply together."""

    def __init__(self, answer: dict[str, Any], prompt: list[int]) -> None:
        (choice,) = answer["choices"]
        message: Message = choice["message"]
        self.message = {**message, "content": message.get("content") or ""}
        self.known: list[int] = [*prompt, *choice["tokens"]]
        self.cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@contextmanager
def living(
    family: Family, *, architecture: str = "llama", engine: EngineConfig = ENGINE, seal: bool = False
) -> Iterator[Live]:
    control = tuple(text for text in family.control if text not in CHATML)
    model = load_model(ModelConfig(model=f"test:{architecture}", test_spelling=True, test_control=control))
    live = Live(family)
    config = ServerConfig(port=0, chat_template=family.choice)
    try:
        with serving(model, engine, server=config, adapt=live.adapt, seal=seal) as server, live.client:
            live.client.base_url = httpx.URL(server.url)
            yield live
    finally:
        model.close()


@pytest.fixture(scope="module", params=[*FORMATS, *TEMPLATES])
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    with living({**FAMILIES, **BUILT_IN}[request.param]) as made:
        yield made


def test_a_tool_round_is_restored_past_the_call(live: Live) -> None:
    called = live.says(START, calls=(READ,))
    history = [*START, rewritten(called.message), *results_of(called.message, "It rains.")]
    answered = live.says(history, content="It says that it rains.")
    assert live.ids(history)[: len(called.known)] == called.known
    assert answered.cached == len(called.known)


def test_results_in_another_order_cost_nothing(live: Live) -> None:
    if not live.family.parallel:
        pytest.skip("it makes one call at a time")
    called = live.says(START, calls=(READ, LIST))
    one, other = results_of(called.message, "It rains.", "notes of the day.txt")
    answered = live.says([*START, rewritten(called.message), other, one], content="Rain.")
    assert answered.cached == len(called.known)
    in_order = live.ids([*START, called.message, one, other])
    assert answered.known[: len(in_order)] == in_order


def test_the_users_next_turn_is_restored_past_everything(live: Live) -> None:
    called = live.says(START, calls=(READ,))
    history = [*START, rewritten(called.message), *results_of(called.message, "It rains.")]
    answered = live.says(history, content="It says that it rains.")
    asked = live.says([*history, answered.message, {"role": "user", "content": "And then?"}], content="Nothing.")
    forgets = live.family.rewrites_old or (live.family.shows_reasoning and live.family.name not in KEEP_REASONING)
    assert (asked.cached == len(answered.known)) is not forgets
    assert asked.cached >= len(live.ids(START)) - GENERATION_PROMPT


def test_a_call_with_other_arguments_is_read_anew(live: Live) -> None:
    called = live.says(START, calls=(("read_file", {"path": "mine.txt"}),))
    (call,) = called.message["tool_calls"]
    forged = {**call, "function": {**call["function"], "arguments": '{"path": "yours.txt"}'}}
    history = [*START, {**called.message, "tool_calls": [forged]}, *results_of(called.message, "hello")]
    answered = live.says(history, content="Hello.")
    assert answered.cached < len(called.known)
    assert live.ids(history)[: len(called.known)] != called.known


@pytest.mark.parametrize("resident_idle", [0, 2])
@pytest.mark.parametrize("architecture", ["qwen35", "gemma3"])
def test_a_state_is_kept_where_a_reply_ends(architecture: str, resident_idle: int) -> None:
    """Models that resume nowhere else go on there, from the live sequence or from the host."""
    with living(
        FAMILIES["hermes"], architecture=architecture, engine=replace(ENGINE, resident_idle=resident_idle)
    ) as live:
        called = live.says(START, calls=(READ, LIST))
        one, other = results_of(called.message, "It rains.", "notes of the day.txt")
        history = [*START, rewritten(called.message), other, one]
        again = live.says(history, calls=(READ,))
        assert again.cached == len(called.known)
        history += [rewritten(again.message), *results_of(again.message, "It rains.")]
        assert live.says(history, content="It says that it rains.").cached == len(again.known)
