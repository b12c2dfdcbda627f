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
from tests.support.families import FAMILIES, Call, Family
from tests.support.saying import SayingEngine
from tests.support.serving import serving

ENGINE = EngineConfig(parallel=2, resident_idle=2, cache_ram_bytes=64 << 20)
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
START: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is in the file?"},
]
READ: Call = ("read_file", {"path": "notes of the day.txt", "line": 7})
LIST: Call = ("list_files", {"path": "/", "exact": True})
FORMATS = ("hermes", "qwen-xml", "mistral", "mistral-named", "harmony", "glm", "kimi", "gemma4", "deepseek-v3.1")


class Live:
    """A live server of one family, over its official route."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.client = httpx.Client()
        self._engine: SayingEngine | None = None

    def adapt(self, state: ServerState) -> ServerState:
        self._engine = SayingEngine(state.engine, state)
        return replace(state, engine=self._engine)

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
def living(family: Family, *, architecture: str = "llama") -> Iterator[Live]:
    control = tuple(text for text in family.control if text not in CHATML)
    model = load_model(ModelConfig(model=f"test:{architecture}", test_spelling=True, test_control=control))
    live = Live(family)
    config = ServerConfig(port=0, chat_template=str(family.template_path))
    try:
        with serving(model, ENGINE, server=config, adapt=live.adapt) as server, live.client:
            live.client.base_url = httpx.URL(server.url)
            yield live
    finally:
        model.close()


@pytest.fixture(scope="module", params=FORMATS)
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    with living(FAMILIES[request.param]) as made:
        yield made


def test_a_tool_round_is_restored_past_the_call(live: Live) -> None:
    called = live.says(START, calls=(READ,))
    history = [*START, rewritten(called.message), *results_of(called.message, "It rains.")]
    answered = live.says(history, content="It says that it rains.")
    assert live.ids(history)[: len(called.known)] == called.known
    assert answered.cached == len(called.known)
