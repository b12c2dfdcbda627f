"""Why a prompt was prefilled, over HTTP: headers, plans that are not run, and the list of the latest requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from anyio import to_thread

from anchorline.config import EngineConfig, ServerConfig
from anchorline.limits import Limits
from anchorline.llama.model import Model
from tests.server.asgi import AsgiCall
from tests.server.standin import ByteTokenizer, StandInPrompt, StandInPrompts
from tests.server.support import Site, site
from tests.server.test_tenants import BODIES, KEYS, bearer
from tests.support.serving import LiveServer, serving

ASK = {"x-anchorline-explain": "true"}
CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = BODIES[CHAT]
generating = pytest.mark.parametrize("path", list(BODIES))
streamed = pytest.mark.parametrize("stream", [False, True])


def told(headers: Any) -> dict[str, str]:
    """What the headers of a reply explain."""
    prefix = "x-anchorline-"
    return {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}


# -- headers --------------------------------------------------------------------------------------


@pytest.mark.anyio
@generating
@streamed
async def test_every_call_explains_itself_when_asked(here: Site, path: str, stream: bool) -> None:
    async with here.client() as client:
        asked = await client.post(path, json=BODIES[path] | {"stream": stream}, headers=ASK)
        plain = await client.post(path, json=BODIES[path] | {"stream": stream})
    assert asked.status_code == plain.status_code == 200
    headers = told(asked.headers)
    counts = {name: int(headers[f"{name}-tokens"]) for name in ("resident", "host", "recomputed", "lost", "new")}
    assert sum(counts.values()) == int(headers["prompt-tokens"]) == len(here.engine.submitted[0].prompt)
    assert (headers["plan"], headers["request"]) == ("restore", here.engine.submitted[0].id)
    assert told(plain.headers) == {}


@pytest.mark.anyio
async def test_a_stream_of_messages_still_opens_with_what_was_restored(here: Site) -> None:
    path = "/v1/messages"
    async with here.client() as client:
        streams = [await client.post(path, json=BODIES[path] | {"stream": True}, headers=given) for given in (ASK, {})]
    opened = [json.loads(stream.text.split("data: ")[1].split("\n")[0])["message"]["usage"] for stream in streams]
    assert opened[0] == opened[1]
    assert opened[0]["cache_read_input_tokens"] == 12


@pytest.mark.anyio
async def test_a_flag_gives_the_headers_to_all_but_those_who_decline() -> None:
    with site(config=ServerConfig(port=0, explain_headers=True)) as here:
        async with here.client() as client:
            replies = [
                await client.post(CHAT, json=HELLO, headers=given)
                for given in ({}, {**ASK, "x-anchorline-explain": "0"})
            ]
    assert [bool(told(reply.headers)) for reply in replies] == [True, False]


@pytest.mark.anyio
async def test_a_header_that_says_neither_is_refused_before_anything_is_done(here: Site) -> None:
    async with here.client() as client:
        reply = await client.post(CHAT, json=HELLO, headers={"x-anchorline-explain": "please"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-anchorline-explain")
    assert here.engine.submitted == []


@pytest.mark.anyio
async def test_a_stream_that_must_begin_before_its_turn_says_that_it_waits() -> None:
    body = json.dumps(HELLO | {"stream": True}).encode()
    with site(ping_seconds=0.01) as here:
        here.engine.script.paused = True
        first, second = AsgiCall("POST", CHAT, body), AsgiCall("POST", CHAT, body, x_anchorline_explain="true")
        async with first.running(here.app):
            await to_thread.run_sync(here.engine.wait_for_submission)
            async with second.running(here.app):
                await second.wait_for_body(b": waiting\n\n")
                here.engine.allow(1000)
        (start,) = (message for message in second.sent if message["type"] == "http.response.start")
        headers = told({name.decode(): value.decode() for name, value in start["headers"]})
        assert headers == {"request": here.engine.submitted[1].id, "plan": "waiting"}
        async with here.client() as client:
            (latest, _) = (await client.get("/cache/requests")).json()["data"]
        assert (latest["id"], latest["plan"]) == (headers["request"], "restore")


# -- the latest requests --------------------------------------------------------------------------


@pytest.mark.anyio
async def test_of_all_requests_the_newest_are_listed_first_and_the_oldest_forgotten() -> None:
    with site(config=ServerConfig(port=0, limits=Limits(recent_requests=3))) as here:
        async with here.client() as client:
            for path in BODIES:
                await client.post(path, json=BODIES[path])
            listed = (await client.get("/cache/requests")).json()
            two = (await client.get("/cache/requests", params={"limit": 2})).json()
    assert [entry["endpoint"] for entry in listed["data"]] == list(BODIES)[:0:-1]
    assert [entry["id"] for entry in listed["data"]] == [request.id for request in here.engine.submitted[:0:-1]]
    assert two["data"] == listed["data"][:2]
    assert {entry["status"] for entry in listed["data"]} == {"finished"}


@pytest.mark.anyio
@pytest.mark.parametrize("limit", ["0", "4", "-1", "x", ""])
async def test_a_limit_that_is_none_is_refused_with_its_flag(limit: str) -> None:
    with site(config=ServerConfig(port=0, limits=Limits(recent_requests=3))) as here:
        async with here.client() as client:
            reply = await client.get("/cache/requests", params={"limit": limit})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "limit")
    assert "between 1 and 3 (--max-recent-requests)" in error["message"]


@pytest.mark.anyio
async def test_requests_are_listed_for_their_own_key_and_salt_alone() -> None:
    with site(config=ServerConfig(port=0, api_keys=KEYS)) as here:
        async with here.client(**bearer(KEYS[0])) as ann, here.client(**bearer(KEYS[1])) as ben:
            await ann.post(CHAT, json=HELLO)
            await ann.post(CHAT, json=HELLO | {"cache_salt": "a"})
            plain, salted = [
                (await ann.get("/cache/requests", params=params)).json()["data"] for params in ({}, {"cache_salt": "a"})
            ]
            assert (await ben.get("/cache/requests")).json()["data"] == []
            refused = await ben.get("/cache/requests", params={"cache_salt": ""})
    assert [[entry["id"] for entry in listed] for listed in (plain, salted)] == [
        [request.id] for request in here.engine.submitted
    ]
    assert refused.json()["error"]["param"] == "cache_salt"


@pytest.mark.anyio
async def test_a_call_whose_client_left_is_listed_as_cancelled(here: Site) -> None:
    here.engine.script.paused = True
    call = AsgiCall("POST", CHAT, json.dumps(HELLO | {"stream": True}).encode())
    async with call.running(here.app):
        here.engine.allow(1)
        await call.wait_for_body(b"data: ")
        call.leave()
        await to_thread.run_sync(here.engine.wait_for_finish, "chatcmpl-000000000000000000000001")
    async with here.client() as client:
        (entry,) = (await client.get("/cache/requests")).json()["data"]
    assert entry["status"] == "cancelled"


# -- plans ----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_plan_is_refused_as_the_call_would_be(here: Site) -> None:
    async with here.client() as client:
        unknown = await client.post("/cache/explain?endpoint=/v1/embeddings", json=HELLO)
        without = await client.post("/cache/explain", json={"messages": []})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "endpoint")
    assert all(path in unknown.json()["error"]["message"] for path in BODIES)
    assert (without.status_code, without.json()["error"]["param"]) == (400, "messages")
    assert here.engine.submitted == []


class NotingPrompts(StandInPrompts):
    """Notes of each chat whether its conversation goes on from there."""

    def __init__(self) -> None:
        super().__init__(ByteTokenizer())
        self.noted: list[bool] = []

    def chat(self, *given: Any, generates: bool = True, **options: Any) -> StandInPrompt:
        self.noted.append(generates)
        return super().chat(*given, generates=generates, **options)


@pytest.mark.anyio
async def test_a_plan_is_no_turn_of_its_conversation() -> None:
    """What the server rewrites stays in a conversation only once it was told."""
    prompts = NotingPrompts()
    with site(prompts=prompts) as here:
        async with here.client() as client:
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
                await client.post("/cache/explain", params={"endpoint": path}, json=BODIES[path])
            assert prompts.noted == [False] * 3
            await client.post(CHAT, json=HELLO)
            assert prompts.noted[3:] == [True]


# -- on real models -------------------------------------------------------------------------------

ENGINE = EngineConfig(parallel=2, resident_idle=1, cache_ram_bytes=64 << 20)
RULES = "Answer briefly, and name the shelf. " * 30
SECRET = "Ursula"
"""A word that no answer of the server may hold."""


class Talker:
    """Calls of one live server."""

    def __init__(self, live: LiveServer, **headers: str) -> None:
        self.client = httpx.Client(base_url=live.url, timeout=60, headers={**ASK, **headers})

    def chat(self, messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
        """The request as it is listed once it has ended."""
        body = {"messages": messages, "temperature": 0, "max_tokens": 4, "ignore_eos": True, **fields}
        reply = self.client.post(CHAT, json=body)
        reply.raise_for_status()
        while self.client.get("/cache").json()["pending_saves"]:
            pass
        (entry,) = self.client.get("/cache/requests", params={"limit": 1}).json()["data"]
        assert entry["id"] == told(reply.headers)["request"]
        return dict(entry)

    def plan(self, body: dict[str, Any], *, endpoint: str = CHAT) -> dict[str, Any]:
        reply = self.client.post("/cache/explain", params={"endpoint": endpoint}, json=body)
        reply.raise_for_status()
        return dict(reply.json())

    def text(self, messages: list[dict[str, str]]) -> bytes:
        body = {"messages": messages}
        return str(self.client.post("/apply-template", json=body).json()["prompt"]).encode()


def library(clock: str, *questions: str) -> list[dict[str, str]]:
    said = [{"role": "user", "content": question} for question in ("Which books are new?", *questions)]
    answered = [each for question in said for each in (question, {"role": "assistant", "content": "These."})][:-1]
    return [{"role": "system", "content": f"You help {SECRET}. It is {clock}. {RULES}"}, *answered]


@pytest.fixture
def talker(tiny_smollm2_model: Model) -> Iterator[Talker]:
    with serving(tiny_smollm2_model, ENGINE) as live:
        yield Talker(live)


def reasons(entry: dict[str, Any]) -> dict[str, int]:
    return {reason["reason"]: reason["tokens"] for reason in entry["reasons"]}


def test_a_clock_in_the_system_prompt_is_found_to_the_byte_with_its_cost_and_a_remedy(talker: Talker) -> None:
    first, warm = talker.chat(library("14:05")), talker.chat(library("14:05", "And old ones?"))
    assert reasons(first) == {"new": first["prompt_tokens"]}
    assert set(reasons(warm)) <= {"new", "always"}
    assert warm["first_difference"]["role"] in ("assistant", "user")
    changed = talker.chat(library("14:07", "And old ones?"))
    place, earlier = changed["first_difference"], talker.text(library("14:05"))
    assert (place["part"], place["message"], place["role"], place["changed"]) == ("head", 0, "system", True)
    assert earlier[place["byte"] - 4 : place["byte"] + 1] == b"14:05"
    assert changed["lost_tokens"] > 0.8 * changed["prompt_tokens"]
    (lost,) = (reason for reason in changed["reasons"] if reason["reason"] == "changed")
    assert "clock" in lost["findings"]
    assert "anchorline doctor" in lost["remedy"]


def test_a_plan_is_what_the_call_then_does_over_every_endpoint(talker: Talker) -> None:
    """Twice each, since the first runs leave rows that the second ones find."""
    text = "The same question, in other words. " * 20
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": library("14:05"), "max_tokens": 4},
        "/v1/completions": {"prompt": text, "max_tokens": 4},
        "/v1/messages": {"messages": [{"role": "user", "content": text}], "max_tokens": 4},
        "/v1/responses": {"input": text, "max_output_tokens": 4},
    }
    for path, body in [*bodies.items()] * 2:
        plan = talker.plan(body, endpoint=path)
        talker.client.post(path, json=body).raise_for_status()
        while talker.client.get("/cache").json()["pending_saves"]:
            pass
        (entry,) = talker.client.get("/cache/requests", params={"limit": 1}).json()["data"]
        assert entry["endpoint"] == path
        shared = (plan.keys() & entry.keys()) - {"object", "expected_ms", "rejected_plans"}
        assert {name: plan[name] for name in shared} == {name: entry[name] for name in shared}
        assert plan["pending_saves"] == 0


@streamed
def test_headers_say_what_was_planned_before_the_first_token(talker: Talker, stream: bool) -> None:
    talker.chat(library("14:05"))
    body = {"messages": library("14:06"), "max_tokens": 4, "stream": stream}
    with talker.client.stream("POST", CHAT, json=body) as reply:
        headers = told(reply.headers)
        reply.read()
    (entry,) = talker.client.get("/cache/requests", params={"limit": 1}).json()["data"]
    for name in ("prompt", "resident", "host", "recomputed", "lost", "new"):
        assert int(headers[f"{name}-tokens"]) == entry[f"{name}_tokens"]
    assert headers["differs"] == entry["first_difference"]["text"]
    assert "anchorline doctor" in headers["remedy"]


def test_nothing_of_what_was_said_is_told(talker: Talker) -> None:
    talker.chat(library("14:05"))
    talker.chat(library("14:06"))
    plan = talker.plan({"messages": library("14:07")})
    told_of = json.dumps([talker.client.get("/cache/requests").json(), plan])
    assert not [word for word in (SECRET, "shelf", "14:0", "books") if word in told_of]


def test_another_key_is_told_nothing_by_a_plan(test_llama_model: Model) -> None:
    with serving(test_llama_model, ENGINE, server=ServerConfig(port=0, api_keys=KEYS)) as live:
        ann, ben = (Talker(live, **bearer(key)) for key in KEYS)
        new = ben.plan({"messages": library("14:06")})
        ann.chat(library("14:05"))
        # What is expected rests on how fast the machine was for all.
        assert ben.plan({"messages": library("14:06")}) | {"expected_ms": new["expected_ms"]} == new
        assert ann.plan({"messages": library("14:06")})["lost_tokens"] > 0


def test_a_hybrid_names_the_cut_whose_state_is_missing(test_models: Callable[[str], Model]) -> None:
    with serving(test_models("qwen35"), ENGINE, context_tokens=4096) as live:
        talker = Talker(live)
        long = library("14:05", *(f"And number {number}, which one is that?" for number in range(5)))
        talker.chat(long)
        edited = [*long[:4], {"role": "user", "content": "Quite another question."}]
        plan, entry = talker.plan({"messages": edited}), talker.chat(edited)
        for told_of in (plan, entry):
            assert (told_of["miss"], told_of["missing_cut"]) == ("no_state", "message 3")
            (missed,) = (reason for reason in told_of["reasons"] if reason["reason"] == "no_state")
            assert "none was at message 3" in missed["text"]
            assert "--checkpoint-every" in missed["remedy"]
            assert missed["tokens"] == told_of["recomputed_tokens"] > 0


def test_a_server_that_keeps_nothing_gives_that_as_the_reason(test_llama_model: Model) -> None:
    with serving(test_llama_model, EngineConfig(parallel=1, cache=False)) as live:
        talker = Talker(live)
        talker.chat(library("14:05"))
        for told_of in (talker.chat(library("14:05")), talker.plan({"messages": library("14:05")})):
            assert reasons(told_of) == {"no_cache": told_of["prompt_tokens"]}
