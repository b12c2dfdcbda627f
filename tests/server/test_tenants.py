"""Who shares cached prefixes and remembered turns with whom: keys, salts and heads that are common to all."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from anchorline.cache.prompt import DEFAULT_TENANT
from anchorline.config import EngineConfig, ServerConfig
from anchorline.errors import ConfigError
from anchorline.limits import Limits
from anchorline.llama.model import Model
from tests.server.support import Site, site
from tests.server.test_tool_round_trip import ASKED, TOOLS, LiveChat
from tests.support.serving import serving

ENGINE = EngineConfig(parallel=2, resident_idle=2, cache_ram_bytes=64 << 20)
KEYS = ("ann's", "ben's")

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
}
RENDERING = {
    "/apply-template": BODIES["/v1/chat/completions"],
    "/v1/messages/count_tokens": BODIES["/v1/messages"],
}
generating = pytest.mark.parametrize("path", list(BODIES))


# -- who is who -----------------------------------------------------------------------------------


async def tenant(here: Site, path: str = "/v1/chat/completions", *, salt: str | None = None, **headers: str) -> str:
    """Whose prompt the engine is given."""
    async with here.client(**headers) as client:
        response = await client.post(path, json=BODIES[path] | {"cache_salt": salt})
    assert response.status_code == 200, response.text
    return here.engine.submitted[-1].prompt.tenant


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.anyio
@generating
@pytest.mark.parametrize("api_keys", [(), ("one",), ("one", "one")])
async def test_without_several_keys_all_share_whatever_key_they_send(path: str, api_keys: tuple[str, ...]) -> None:
    with site(config=ServerConfig(port=0, api_keys=api_keys)) as here:
        sent = [bearer("one"), bearer("one") if api_keys else bearer("two")]
        assert [await tenant(here, path, **headers) for headers in sent] == [DEFAULT_TENANT] * 2


@pytest.mark.anyio
@generating
async def test_several_keys_are_as_many_tenants(path: str) -> None:
    with site(config=ServerConfig(port=0, api_keys=KEYS)) as here:
        ann, ben, again = [await tenant(here, path, **bearer(key)) for key in (*KEYS, KEYS[0])]
        assert ann == again
        assert len({ann, ben, DEFAULT_TENANT}) == 3
        assert await tenant(here, path, **{"x-api-key": KEYS[1]}) == ben


@pytest.mark.anyio
async def test_the_key_that_lets_a_client_in_decides() -> None:
    """Clients that send both headers often have the same words in one of them."""
    with site(config=ServerConfig(port=0, api_keys=KEYS)) as here:
        ann, ben = [await tenant(here, **bearer("none"), **{"x-api-key": key}) for key in KEYS]
        assert (ann, ben) == (await tenant(here, **bearer(KEYS[0])), await tenant(here, **bearer(KEYS[1])))
        assert ann != ben


@pytest.mark.anyio
@generating
async def test_a_salt_keeps_apart_within_a_key_and_never_joins_keys(path: str) -> None:
    with site(config=ServerConfig(port=0, api_keys=KEYS)) as here:
        seen = [await tenant(here, path, salt=salt, **bearer(key)) for key in KEYS for salt in (None, "a", "b", "a")]
    assert seen[1] == seen[3]
    assert seen[5] == seen[7]
    assert len(set(seen)) == 6


@pytest.mark.anyio
@pytest.mark.parametrize("path", [*BODIES, *RENDERING])
@pytest.mark.parametrize(
    ("salt", "part"),
    [
        ("", "must not be empty"),
        ("é" * 5, "10 bytes long; at most 9 are allowed (--max-cache-salt-bytes)"),
        (7, "a string"),
    ],
)
async def test_a_salt_that_is_none_is_refused(path: str, salt: object, part: str) -> None:
    with site(config=ServerConfig(port=0, limits=Limits(cache_salt_bytes=9))) as here:
        async with here.client() as client:
            response = await client.post(path, json=(BODIES | RENDERING)[path] | {"cache_salt": salt})
    error = response.json()["error"]
    assert response.status_code == 400
    assert "cache_salt" in error["message"]
    assert part in error["message"]
    assert error.get("param", "cache_salt") == "cache_salt"


@pytest.mark.parametrize("digest", ["0123456789ABCDEF", "0123456789abcde", "all", ""])
def test_a_digest_that_no_head_can_have_is_refused(digest: str) -> None:
    with pytest.raises(ConfigError, match="--share-heads must"):
        ServerConfig(share_heads=(digest,)).validate()


# -- what they share ------------------------------------------------------------------------------

SYSTEM = "You look after a small library. " + "Answer briefly, and name the shelf. " * 430
PROMPT_TOKENS = 3_000
"""At least."""


def messages(system: str = SYSTEM) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": "Which books are new?"}]


def ask(url: str, *, key: str = KEYS[0], **fields: Any) -> dict[str, Any]:
    """``timings`` of a call."""
    body = {"messages": messages(), "temperature": 0, "max_tokens": 4, "ignore_eos": True, **fields}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=bearer(key), timeout=120)
    response.raise_for_status()
    timings: dict[str, Any] = response.json()["timings"]
    return timings


def head_tokens(url: str) -> int:
    body = {"messages": messages(), "return_tokens": True}
    cuts: list[int] = httpx.post(f"{url}/apply-template", json=body, headers=bearer(KEYS[0]), timeout=60).json()["cuts"]
    return cuts[0]


def pairs(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    """What the log says of each call so far."""
    lines = [record.getMessage() for record in caplog.records if record.name == "anchorline.request"]
    return [dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line)) for line in lines]


@pytest.fixture
def url(test_llama_model: Model) -> Iterator[str]:
    server = ServerConfig(port=0, api_keys=KEYS)
    with serving(test_llama_model, ENGINE, server=server) as live:
        yield live.url


def test_what_another_key_sent_is_as_new(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "anchorline.request")
    first, foreign, own = ask(url), ask(url, key=KEYS[1]), ask(url, key=KEYS[1])
    assert first["cache_n"] == foreign["cache_n"] == 0
    assert first["prompt_n"] == foreign["prompt_n"] >= PROMPT_TOKENS
    assert own["cache_n"] == first["prompt_n"] - 1
    told = pairs(caplog)
    assert [call["seen"] for call in told[:2]] == ["0", "0"]
    assert [(call["plan"], call["differs"]) for call in told[:2]] == [("cold", "none")] * 2
    assert "miss" not in told[1]


def test_what_was_sent_under_another_salt_is_as_new(url: str) -> None:
    salts = ("a", "b", "a", None, "b", None)
    restored = [ask(url, **({} if salt is None else {"cache_salt": salt}))["cache_n"] for salt in salts]
    assert [count > 0 for count in restored] == [False, False, True, False, True, True]


def test_a_shared_head_is_restored_and_nothing_behind_it(
    test_llama_model: Model, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "anchorline.request")
    ask(url)
    (digest,) = {call["head"] for call in pairs(caplog)}
    server = ServerConfig(port=0, api_keys=KEYS, share_heads=(digest,))
    with serving(test_llama_model, ENGINE, server=server) as live:
        first, foreign = ask(live.url), ask(live.url, key=KEYS[1])
        own, salted = ask(live.url, key=KEYS[1]), ask(live.url, cache_salt="a")
        assert first["cache_n"] == 0
        assert own["cache_n"] == first["prompt_n"] - 1
        assert foreign["cache_n"] == salted["cache_n"] == head_tokens(live.url)
        longer = ask(live.url, key=KEYS[1], messages=messages(SYSTEM + "!"))
        assert longer["cache_n"] == 0


def test_anchors_are_those_of_a_key_and_a_salt(url: str) -> None:
    anchor = {"messages": messages()[:1]}
    query: list[dict[str, str]] = [{}, {"cache_salt": "a"}]
    with httpx.Client(base_url=url, headers=bearer(KEYS[0]), timeout=60) as ann:
        ids = [ann.post("/cache/anchors", json=anchor | salt).json()["id"] for salt in query]
        listed = [[pin["id"] for pin in ann.get("/cache/anchors", params=salt).json()["data"]] for salt in query]
        assert listed == [[ids[0]], [ids[1]]]
        assert ann.delete(f"/cache/anchors/{ids[1]}").status_code == 404
        with httpx.Client(base_url=url, headers=bearer(KEYS[1]), timeout=60) as ben:
            assert ben.get("/cache/anchors").json()["data"] == []
            assert ben.delete(f"/cache/anchors/{ids[0]}").status_code == 404
            nothing = {"freed_bytes": 0, "kept_bytes": 0, "undeleted_files": 0}
            assert ben.post("/cache/clear", json={"pins": True}).json() == nothing
        assert ask(url)["cache_n"] >= head_tokens(url)
        assert ann.post("/cache/clear", params=query[1], json={"pins": True}).json()["kept_bytes"] == 0
        assert [pin["id"] for pin in ann.get("/cache/anchors").json()["data"]] == [ids[0]]
        too_long = ann.get("/cache/anchors", params={"cache_salt": "a" * 300})
        assert (too_long.status_code, too_long.json()["error"]["param"]) == (400, "cache_salt")


def test_neither_log_nor_metrics_name_a_tenant(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ask(url, cache_salt="pepper")
    metrics = httpx.get(f"{url}/metrics", headers=bearer(KEYS[0])).text
    for text in (caplog.text, metrics):
        assert not [secret for secret in (*KEYS, "pepper", "tenant") if secret in text]


def test_a_turn_is_known_again_under_its_own_salt_alone(tiny_smollm2_model: Model) -> None:
    live, said = LiveChat(), '<tool_call>\n{"arguments":{"path":"a.txt"},"name":"read_file"}\n</tool_call>'
    with serving(tiny_smollm2_model, ENGINE, adapt=live.adapt) as server:
        live.url = server.url
        live.says(said)
        fields = {"messages": ASKED, "tools": TOOLS, "cache_salt": "a"}
        reply = httpx.post(f"{live.url}/v1/chat/completions", json=fields, timeout=60).json()
        turn = reply["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "hello"}

        def rendered(**salt: str) -> str:
            body = {"messages": [*ASKED, turn, result], "tools": TOOLS, **salt}
            text: str = httpx.post(f"{live.url}/apply-template", json=body, timeout=60).json()["prompt"]
            return text

        assert said in rendered(cache_salt="a")
        assert said not in rendered(cache_salt="b")
        assert said not in rendered()
