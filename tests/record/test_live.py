"""Official clients through the proxy to a real server, and a replay of what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from anchorline.bench import agent
from anchorline.bench.client import Client
from anchorline.bench.replay import replay_trace
from anchorline.bench.report import ReplayReport
from anchorline.bench.trace import Trace, chat_only, read_trace
from anchorline.config import EngineConfig
from anchorline.llama.model import Model
from tests.record.support import common, encoded, words
from tests.record.upstream import recording
from tests.support.serving import serving

ENGINE = EngineConfig(parallel=1, resident_idle=1, cache_ram_bytes=64 << 20)
GREEDY = {"temperature": 0}
QUESTION: Any = [{"role": "user", "content": "Where does Ünïcode café 48150 open the lid?"}]


def talk(url: str) -> list[str]:
    """A session of five kinds of calls; gives the texts of their replies."""
    said: list[str] = []
    messages: Any = [agent.user("List the files, please."), agent.assistant("Done."), agent.user("Read notes.txt")]
    with OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0, timeout=60) as client:
        for turn in (1, 3):
            body: Any = agent.chat_body(messages[:turn], max_tokens=4)
            said.append(str(client.chat.completions.create(**body).choices[0].message.content))
            chunks = client.chat.completions.create(**body, stream=True)
            said.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
        said.append(
            client.responses.create(model="m", input="Say hello", max_output_tokens=4, temperature=0).output_text
        )
    with Anthropic(base_url=url, api_key="secret", max_retries=0, timeout=60) as anthropic:
        whole = anthropic.messages.create(model="m", messages=QUESTION, max_tokens=4, extra_body=GREEDY)
        said.append("".join(block.text for block in whole.content if block.type == "text"))
        with anthropic.messages.stream(model="m", messages=QUESTION, max_tokens=4, extra_body=GREEDY) as stream:
            said.append("".join(stream.text_stream))
    return said


@pytest.fixture(scope="module")
def recorded(test_llama_model: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    """One session recorded by two proxies in a row: in other words, and as it was."""
    folder: Path = tmp_path_factory.mktemp("traces")
    replaced, kept = folder / "replaced.jsonl", folder / "kept.jsonl"
    with serving(test_llama_model, ENGINE) as server:
        with (
            recording(server.url, kept, keep_text=True) as (inner, _),
            recording(inner, replaced) as (outer, recorder),
        ):
            through = talk(outer)
        assert recorder.left_out == {}
        assert talk(server.url) == through
    return read_trace(replaced), read_trace(kept)


def test_every_call_is_there_in_its_place(recorded: tuple[Trace, Trace]) -> None:
    for trace in recorded:
        assert [request.path for request in trace.requests] == [
            *["/v1/chat/completions"] * 4,
            "/v1/responses",
            *["/v1/messages"] * 2,
        ]


def test_calls_share_as_many_bytes_as_before_and_no_word_is_left(recorded: tuple[Trace, Trace]) -> None:
    new, old = ([encoded(request.body.get("messages")) for request in trace.requests] for trace in recorded)
    for earlier, later in ((0, 1), (0, 2), (2, 3), (5, 6)):
        assert common(new[earlier], new[later]) == common(old[earlier], old[later]) > 50
    said_later, said = (
        {word for request in trace.requests for word in words(request.body.get("messages"))} for trace in recorded
    )
    assert said_later & said <= {"role", "user", "system", "assistant", "content"}


def replayed(trace: Trace, model: Model) -> ReplayReport:
    with serving(model, ENGINE) as server, Client(server.url) as client:
        return replay_trace(chat_only(trace), client)


def test_a_replay_prefills_the_same(recorded: tuple[Trace, Trace], test_llama_model: Model) -> None:
    new, old = (replayed(trace, test_llama_model) for trace in recorded)
    assert [call.prompt_tokens for call in new.calls] == [call.prompt_tokens for call in old.calls]
    assert [call.prefilled_tokens for call in new.calls] == [call.prefilled_tokens for call in old.calls]
    assert new.calls[2].cached_tokens > 0
