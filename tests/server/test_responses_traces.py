"""What real agents sent to ``/v1/responses``, sent again."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from anchorline.api.responses_request import Memory, ResponsesCall, parse_responses
from anchorline.api.responses_store import ResponseStore
from anchorline.bench.trace import read_trace
from anchorline.config import EngineConfig
from anchorline.limits import Limits
from anchorline.llama.model import Model
from tests.api.support import CONTEXT
from tests.support.responses_sdk import events_of
from tests.support.serving import serving

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")

TRACES = ("codex", "openai-agents-responses")


def bodies(name: str) -> list[dict[str, Any]]:
    return [dict(request.body) for request in read_trace(RECORDED / f"{name}.jsonl").requests]


def parse(body: dict[str, Any]) -> ResponsesCall:
    counter = itertools.count(1)
    memory = Memory(store=ResponseStore(entries=1, size_bytes=1 << 20), tenant="")
    roomy = dataclasses.replace(CONTEXT, limits=Limits())
    return parse_responses(json.dumps(body).encode(), context=roomy, memory=memory, new_id=lambda: str(next(counter)))


@pytest.mark.parametrize(("name", "count", "growing"), [("codex", 15, 9), ("openai-agents-responses", 7, 6)])
def test_every_turn_begins_as_the_one_before_it(name: str, count: int, growing: int) -> None:
    """Within a session each request adds messages to the last one's and changes none.

    The others are the first of codex's second session, its compactions and what follows them.
    """
    calls = [parse(body) for body in bodies(name)]
    assert len(calls) == count
    prompts = [(call.chat.prompt.tools, call.chat.prompt.messages) for call in calls]
    grown = [
        tools == tools_before and messages[: len(messages_before)] == messages_before
        for (tools_before, messages_before), (tools, messages) in itertools.pairwise(prompts)
    ]
    assert sum(grown) == growing


def test_all_of_codexs_functions_can_be_called() -> None:
    call = parse(bodies("codex")[0])
    assert call.chat.prompt.tools is not None
    names = [tool["function"]["name"] for tool in call.chat.prompt.tools]
    assert len(names) == 7 + 5
    assert sum(name.startswith("bytes_cases_v1__") for name in names) == 5
    assert call.seals_reasoning
    assert call.kept is None


@pytest.mark.parametrize("name", TRACES)
def test_a_session_restores_what_it_sent_before(name: str, test_llama_model: Model) -> None:
    """The prompt of the last request is found whole by the next one, but for where a reply was recorded."""
    config = EngineConfig(parallel=1, cache_ram_bytes=256 << 20)
    with serving(test_llama_model, config, context_tokens=16384) as live, httpx.Client(base_url=live.url) as client:
        usages = []
        for body in bodies(name)[:4]:
            body |= {"max_output_tokens": 4, "temperature": 0, "stream": True}
            response = client.post("/v1/responses", json=body, timeout=300)
            assert response.status_code == 200, response.text
            usages.append(events_of(response.content)[-1]["response"]["usage"])
    for before, after in itertools.pairwise(usages):
        assert after["input_tokens"] > before["input_tokens"]
        # The generation prompt at the end of a prompt is followed by the recorded turn, not by the generated one.
        assert after["input_tokens_details"]["cached_tokens"] >= before["input_tokens"] - 1
