"""Chat completions over ASGI: whole, streamed, and what reaches the engine."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from anchorline.cache.difference import Difference
from anchorline.engine.request import MissReason
from anchorline.errors import EngineFailure
from tests.server.asgi import AsgiCall
from tests.server.standin import ByteTokenizer
from tests.server.support import Site, site

pytestmark = pytest.mark.anyio

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
GOLDEN = Path(__file__).parent / "golden"


async def post(here: Site, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    async with here.client() as client:
        return await client.post(path, json=BODY | fields)


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


async def test_a_whole_reply_is_shaped_as_openai_has_it(here: Site) -> None:
    response = await post(here)
    assert response.headers["content-type"] == "application/json"
    reply = response.json()
    assert set(reply) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"}
    assert reply["id"].startswith("chatcmpl-")
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert reply["usage"]["prompt_tokens"] == len(b"user: hi\nassistant:")
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 12}
    assert reply["timings"]["cache_n"] + reply["timings"]["prompt_n"] == reply["usage"]["prompt_tokens"]


@pytest.mark.parametrize("name", ["chat", "chat_usage", "completion"])
async def test_the_stream_is_the_golden_transcript(here: Site, name: str) -> None:
    here.engine.script.reply = "Héy".encode()
    fields: dict[str, Any] = {"stream": True}
    path = "/v1/chat/completions"
    if name == "chat_usage":
        fields |= {"stream_options": {"include_usage": True}, "n": 2, "return_tokens": True}
    if name == "completion":
        path, fields = "/v1/completions", fields | {"prompt": "a", "logprobs": 1}
    response = await post(here, path, **fields)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert response.text == (GOLDEN / f"{name}.sse").read_text()


async def test_streamed_and_whole_replies_agree(here: Site) -> None:
    here.engine.script.reply = "Grüße, 世界! stop here".encode()
    fields: dict[str, Any] = {
        "stop": [" st"],
        "max_tokens": 100,
        "logprobs": True,
        "top_logprobs": 2,
        "return_tokens": True,
    }
    whole = (await post(here, **fields)).json()["choices"][0]
    streamed = [chunk["choices"][0] for chunk in chunks(await post(here, stream=True, **fields))]
    assert "".join(choice["delta"].get("content", "") for choice in streamed) == whole["message"]["content"]
    assert whole["message"]["content"] == "Grüße, 世界!"
    entries = [entry for choice in streamed if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert entries == whole["logprobs"]["content"]
    assert [token for choice in streamed for token in choice.get("tokens", [])] == whole["tokens"]
    assert streamed[-1]["finish_reason"] == whole["finish_reason"] == "stop"


async def test_the_request_that_reaches_the_engine(here: Site) -> None:
    await post(here, n=2, seed=7, logprobs=True, top_logprobs=3, cache_prompt=False, max_completion_tokens=10**9)
    (request,) = here.engine.submitted
    assert bytes(request.prompt.tokens.tolist()) == b"user: hi\nassistant:"
    assert (request.choices, request.logprobs, request.use_cache) == (2, 3, False)
    assert request.sampling.seed == 7
    assert here.engine.prepared == [request.sampling]
    assert request.max_tokens == here.engine.context_tokens - len(request.prompt)


async def test_tools_and_template_options_reach_the_template(here: Site) -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    await post(here, tools=[tool, tool], add_generation_prompt=False)
    assert bytes(here.engine.submitted[0].prompt.tokens.tolist()) == b"tools: 2\nuser: hi"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_429_with_retry_after(here: Site, stream: bool) -> None:
    here.engine.script.queue_full = True
    response = await post(here, stream=stream)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["code"] == "queue_full"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_fails_before_the_first_token_is_503(here: Site, stream: bool) -> None:
    here.engine.script.error = EngineFailure("out of luck")
    response = await post(here, stream=stream)
    assert response.status_code == 503
    error = response.json()["error"]
    assert (error["message"], error["code"]) == ("out of luck", "engine_failure")


async def test_an_engine_that_fails_in_mid_stream_says_so_and_ends(here: Site) -> None:
    here.engine.script.error, here.engine.script.error_after = EngineFailure("out of luck"), 1
    here.engine.script.paused = True
    here.engine.allow(1)
    call = AsgiCall("POST", "/v1/chat/completions", json.dumps(BODY | {"stream": True}).encode())
    async with call.running(here.app):
        await call.wait_for_body(b'"content":"H"')
        here.engine.allow(10)
    text = b"".join(call.body_parts).decode()
    events = [event for event in text.split("\n\n") if event]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["message"] == "out of luck"
    assert "[DONE]" not in text


async def test_a_stopped_engine_is_503(here: Site) -> None:
    here.engine.close()
    assert (await post(here)).status_code == 503


async def test_a_prompt_over_the_context_says_both_numbers(here: Site) -> None:
    response = await post(here, messages=[{"role": "user", "content": "x" * 5000}])
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "5017" in error["message"]
    assert "4096" in error["message"]


async def test_text_completions_take_text_and_ids(here: Site) -> None:
    by_text = (await post(here, "/v1/completions", prompt="ab")).json()
    by_ids = (await post(here, "/completions", prompt=[97, 98])).json()
    assert by_text["choices"] == by_ids["choices"]
    assert by_text["object"] == "text_completion"
    assert by_text["id"].startswith("cmpl-")
    assert by_text["choices"][0] == {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length"}
    first, second = here.engine.submitted
    assert first.prompt.tokens.tolist() == second.prompt.tokens.tolist() == [97, 98]


@pytest.mark.parametrize("prompt", ["", [259], [-1], [2**40]])
async def test_prompts_without_or_beyond_tokens_are_refused(here: Site, prompt: object) -> None:
    response = await post(here, "/v1/completions", prompt=prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prompt")


async def test_a_completion_over_the_context_names_the_prompt(here: Site) -> None:
    response = await post(here, "/v1/completions", prompt="x" * 5000)
    assert response.json()["error"]["param"] == "prompt"


async def test_each_call_logs_one_line(here: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "anchorline.request")
    here.engine.script.miss = MissReason.EVICTED
    here.engine.script.difference = Difference(position=14, lost_tokens=4)
    await post(here)
    (record,) = [record for record in caplog.records if record.name == "anchorline.request"]
    line = record.getMessage()
    assert "plan=restore prompt=19 restored=12 prefilled=7 generated=5 tier=resident+host" in line
    assert "queue_ms=1.0 restore_ms=3.0 prefill_ms=4.0 ttft_ms=6.0" in line
    assert line.endswith('seen=20 differs="the generation prompt, byte 5" lost=4 sharing_ms=0.5 miss=evicted')


async def test_a_silent_stream_sends_comments() -> None:
    with site(ping_seconds=0.01) as quiet:
        quiet.engine.script.paused = True
        call = AsgiCall("POST", "/v1/chat/completions", json.dumps(BODY | {"stream": True}).encode())
        async with call.running(quiet.app):
            await call.wait_for_body(b": waiting\n\n")
            quiet.engine.allow(100)
        assert call.body_parts[0] == b": waiting\n\n"
        assert b"".join(call.body_parts).endswith(b"data: [DONE]\n\n")


async def test_bos_is_part_of_a_text_prompt() -> None:
    with site(tokenizer=ByteTokenizer(adds_bos=True)) as with_bos:
        await post(with_bos, "/v1/completions", prompt="a")
        assert with_bos.engine.submitted[0].prompt.tokens.tolist() == [258, 97]
