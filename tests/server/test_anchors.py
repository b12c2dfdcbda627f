"""Pins over HTTP, on real models: what is pinned ahead is restored, whatever came in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from anyio import to_thread

from anchorline.config import EngineConfig, ServerConfig
from anchorline.llama.model import Model
from anchorline.server import anchors
from tests.server.asgi import AsgiCall
from tests.server.support import Site, site
from tests.support.serving import LiveServer, serving

BUDGET_BYTES = 3 << 19
SYSTEM = [{"role": "system", "content": "You are an agent that answers with care. " * 20}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
AGENT: dict[str, Any] = {"messages": SYSTEM, "tools": TOOLS}
TALK: list[dict[str, Any]] = [
    *SYSTEM,
    {"role": "user", "content": "A question?"},
    {"role": "assistant", "content": "Yes."},
]

LONG = [{"role": "user", "content": "This is a question that says a lot. " * 30}]
"""Worth no more by the byte than what the flood brings."""


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Server:
    """Calls of one live server, whose pins expire by ``clock``."""

    def __init__(self, live: LiveServer, clock: Clock) -> None:
        self.clock = clock
        self._client = httpx.Client(base_url=live.url, timeout=60)

    def call(self, method: str, path: str, status: int = 200, **body: Any) -> Any:
        answer = self._client.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def pin(self, status: int = 200, **body: Any) -> Any:
        return self.call("POST", "/cache/anchors", status, **body)

    @property
    def anchors(self) -> list[Any]:
        listed: list[Any] = self.call("GET", "/cache/anchors")["data"]
        return listed

    def restored(self, text: str, *, after: list[dict[str, Any]] = SYSTEM, tools: list[Any] | None = TOOLS) -> int:
        """Tokens that a chat call did not have to prefill."""
        messages = [*after, {"role": "user", "content": text}]
        reply = self.call("POST", "/v1/chat/completions", messages=messages, tools=tools, max_tokens=1)
        restored: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        return restored

    def flood(self) -> None:
        """More than the whole budget of other prompts."""
        for number in range(20):
            self.call("POST", "/v1/completions", prompt=f"{number} is another prompt. " * 60, max_tokens=1)
        assert self.call("GET", "/cache")["counters"]["evicted_bytes"] > BUDGET_BYTES // 4


@pytest.fixture(params=["llama", "qwen35"])
def server(request: pytest.FixtureRequest, test_models: Callable[[str], Model]) -> Iterator[Server]:
    clock = Clock()
    config = EngineConfig(parallel=2, resident_idle=1, cache_ram_bytes=BUDGET_BYTES)
    with serving(test_models(request.param), config, context_tokens=2048, clock=clock) as live:
        yield Server(live, clock)


def test_the_first_call_restores_the_whole_anchor_also_after_a_flood(server: Server) -> None:
    anchor = server.pin(**AGENT, name="agent")
    assert (anchor["object"], anchor["kind"], anchor["name"]) == ("cache.anchor", "explicit", "agent")
    assert (anchor["restored_tokens"], anchor["prefilled_tokens"]) == (0, anchor["tokens"])
    server.flood()
    assert server.restored("Hello!") == anchor["tokens"] > 100


def test_a_whole_conversation_can_be_pinned(server: Server) -> None:
    anchor = server.pin(messages=TALK, tools=TOOLS)
    server.flood()
    assert server.restored("And now?", after=TALK) == anchor["tokens"]


def test_tools_alone_are_pinned_as_the_head_that_they_make(server: Server) -> None:
    anchor = server.pin(tools=TOOLS)
    server.flood()
    assert server.restored("Hello!", after=[]) == anchor["tokens"]


def test_the_same_content_again_refreshes_its_anchor(server: Server) -> None:
    first = server.pin(**AGENT, name="agent", ttl="1h")
    again = server.pin(**AGENT, name="other name")
    assert (again["id"], again["name"], again["ttl_seconds"]) == (first["id"], "other name", None)
    assert (again["restored_tokens"], again["prefilled_tokens"]) == (first["tokens"], 0)
    assert [anchor["id"] for anchor in server.anchors] == [first["id"]]


def test_what_is_deleted_goes_with_the_next_flood(server: Server) -> None:
    anchor = server.pin(messages=LONG)
    path = f"/cache/anchors/{anchor['id']}"
    assert server.call("DELETE", path) == {"id": anchor["id"], "object": "cache.anchor.deleted", "deleted": True}
    for method in ("DELETE", "PATCH"):
        assert server.call(method, path, 404)["error"]["code"] == "not_found"
    server.flood()
    assert server.restored("And now?", after=LONG, tools=None) < anchor["tokens"]


def test_a_pin_ends_its_ttl_after_its_last_use(server: Server) -> None:
    anchor = server.pin(messages=LONG, ttl="5m")
    server.clock.seconds = 299
    server.restored("And now?", after=LONG, tools=None)
    server.clock.seconds = 598
    (shown,) = (pin for pin in server.anchors if pin["id"] == anchor["id"])
    assert (shown["ttl_seconds"], shown["expires_in_seconds"]) == (300, 1)
    server.clock.seconds = 599
    assert anchor["id"] not in [pin["id"] for pin in server.anchors]
    server.flood()
    assert server.restored("And now?", after=LONG, tools=None) < anchor["tokens"]


def test_a_head_that_the_server_pinned_can_be_made_explicit(server: Server) -> None:
    server.restored("Hello!")
    while not server.anchors:  # it is pinned once the reply's rows are saved
        pass
    (head,) = server.anchors
    assert (head["kind"], head["name"]) == ("head", None)
    changed = server.call("PATCH", f"/cache/anchors/{head['id']}", name="agent", ttl=60)
    assert (changed["id"], changed["kind"], changed["name"], changed["ttl_seconds"]) == (
        head["id"],
        "explicit",
        "agent",
        60,
    )
    renamed = server.call("PATCH", f"/cache/anchors/{head['id']}", name="my agent")
    assert (renamed["name"], renamed["ttl_seconds"]) == ("my agent", 60)


def test_clearing_forgets_what_is_not_pinned_and_pins_when_told_to(server: Server) -> None:
    anchor = server.pin(**AGENT)
    server.restored("A long message. " * 20)
    cleared = server.call("POST", "/cache/clear")
    assert cleared["freed_bytes"] > 0
    assert cleared["kept_bytes"] >= anchor["bytes"]
    assert server.restored("A long message. " * 20) == anchor["tokens"]
    assert server.call("POST", "/cache/clear", pins=True)["kept_bytes"] == 0
    assert server.anchors == []
    assert server.restored("Hello!") == 0


def test_beyond_the_budget_the_error_says_what_is_pinned_and_nothing_is_prefilled(server: Server) -> None:
    first = server.pin(**AGENT, name="agent")
    large = [{"role": "system", "content": "Much more to keep than there is room. " * 180}]
    error = server.pin(409, messages=large)["error"]
    assert error["code"] == "pin_budget_exceeded"
    assert "--pin-budget" in error["message"]
    (pinned,) = error["pinned"]
    assert pinned.items() <= {**first, "bytes": error["pinned_bytes"]}.items()
    assert f"{first['id']} 'agent' (explicit, {first['tokens']} tokens) holds {pinned['bytes']}" in error["message"]
    assert error["pinned_bytes"] + error["needed_bytes"] > error["pin_budget_bytes"] == BUDGET_BYTES // 2
    assert len(server.anchors) == 1
    assert server.restored("Hello!", after=large, tools=None) < 30


def test_statistics_count_what_pins_did(server: Server) -> None:
    server.pin(messages=TALK, ttl=5)
    server.clock.seconds = 5
    server.restored("Hello!", after=[], tools=None)
    shown = server.call("GET", "/cache")
    assert shown["enabled"] is True
    assert shown["used_bytes"] <= shown["budget_bytes"] == BUDGET_BYTES
    assert shown["counters"]["pins_ended"] == {"expired": 1}
    assert SYSTEM[0]["content"][:20] not in json.dumps(shown)


@pytest.mark.anyio
async def test_a_client_that_leaves_ends_the_prefill(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "anchor_position", lambda prompt, messages: 3)
    here.engine.keeps = True
    here.engine.script.paused = True
    call = AsgiCall("POST", "/cache/anchors", json.dumps({"messages": SYSTEM}).encode())
    async with call.running(here.app):
        await to_thread.run_sync(here.engine.wait_for_submission)
        (request,) = here.engine.submitted
        assert (len(request.prompt), request.max_tokens) == (3, 0)
        call.leave()
        await to_thread.run_sync(here.engine.wait_for_cancel, request.id)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/cache/anchors"),
        ("PATCH", "/cache/anchors/anchor_1"),
        ("DELETE", "/cache/anchors/anchor_1"),
    ],
)
@pytest.mark.anyio
async def test_a_server_that_keeps_nothing_says_so(
    monkeypatch: pytest.MonkeyPatch, here: Site, method: str, path: str
) -> None:
    monkeypatch.setattr(anchors, "anchor_position", lambda prompt, messages: 3)
    async with here.client() as client:
        answer = await client.request(method, path, json={"messages": SYSTEM})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "cache_off"


@pytest.mark.anyio
async def test_the_cache_is_behind_the_key() -> None:
    with site(config=ServerConfig(port=0, api_keys=("secret",))) as guarded:
        async with guarded.client() as client:
            for method, path in (("GET", "/cache"), ("GET", "/cache/anchors"), ("POST", "/cache/clear")):
                assert (await client.request(method, path)).status_code == 401
            assert (await client.get("/cache", headers={"authorization": "Bearer secret"})).status_code == 200
