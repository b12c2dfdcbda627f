"""``anchorline cache`` against a live server: what it makes, shows and changes, and what it says when it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from anchorline.bench.client import Client
from anchorline.cli.main import cli
from anchorline.config import EngineConfig, ServerConfig
from anchorline.llama.model import Model
from tests.server.support import listening
from tests.support.serving import LiveServer, serving

KEY = "secret"
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def request(system: str, *users: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, *({"role": "user", "content": text} for text in users)]
    return {"messages": messages, "tools": [LOOK], "max_tokens": 1, "temperature": 0}


@pytest.fixture(scope="module")
def live(test_llama_model: Model) -> Iterator[LiveServer]:
    config = EngineConfig(cache_ram_bytes=4 << 20, pin_budget_bytes=128 << 10)
    with serving(test_llama_model, config, server=ServerConfig(port=0, api_keys=(KEY,))) as running:
        yield running


@pytest.fixture
def client(live: LiveServer) -> Iterator[Client]:
    """A client; the server has forgotten what other tests did."""
    with Client(live.url, api_key=KEY) as made:
        made.post("/cache/clear", {"pins": True})
        yield made


def run(live: LiveServer, *arguments: str | Path, key: str = KEY) -> Result:
    environment = {"ANCHORLINE_URL": live.url, "ANCHORLINE_API_KEY": key}
    return CliRunner().invoke(cli, ["cache", *map(str, arguments)], env=environment)


def answer(live: LiveServer, *arguments: str | Path) -> Any:
    result = run(live, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def warmed(live: LiveServer, tmp_path: Path, *requests: dict[str, Any], options: tuple[str, ...] = ()) -> Any:
    path = tmp_path / "requests.json"
    path.write_text(json.dumps(requests))
    return answer(live, "warm", path, *options)


def test_a_warmed_head_is_there_for_the_first_call(live: LiveServer, client: Client, tmp_path: Path) -> None:
    first = request("You look after books. " * 20, "hi")
    (anchor,) = warmed(live, tmp_path, first, request("You look after books. " * 20, "another"))
    assert anchor["prefilled_tokens"] == anchor["tokens"] > 100
    assert anchor["name"] == "requests.json, entry 1"
    assert client.chat(first).cached_tokens == anchor["tokens"]
    (again,) = warmed(live, tmp_path, first)
    assert (again["id"], again["prefilled_tokens"]) == (anchor["id"], 0)


def test_whole_conversations_are_kept_for_a_while(live: LiveServer, client: Client, tmp_path: Path) -> None:
    asked = request("You look after books.", "Where is Emma? " * 10)
    (head,) = warmed(live, tmp_path, asked)
    (whole,) = warmed(live, tmp_path, asked, options=("--whole", "--ttl", "5m"))
    assert whole["tokens"] > head["tokens"] + 20
    assert (whole["ttl_seconds"], head["ttl_seconds"]) == (300.0, None)
    assert client.chat(asked).cached_tokens >= whole["tokens"]


def test_pins_are_listed_changed_and_let_go(live: LiveServer, client: Client, tmp_path: Path) -> None:
    (anchor,) = warmed(live, tmp_path, request("You look after books."))
    id = anchor["id"]
    assert answer(live, "pin", id, "--name", "books", "--ttl", "90")["ttl_seconds"] == 90.0
    (listed,) = answer(live, "ls")["data"]
    assert (listed["id"], listed["name"], listed["ttl_seconds"]) == (id, "books", 90.0)
    assert answer(live, "pin", id, "--ttl", "none")["ttl_seconds"] is None
    shown = run(live, "ls").stdout
    assert id in shown
    assert "books" in shown
    assert "of 128KiB pinned" in shown
    assert answer(live, "unpin", id) == {"id": id, "object": "cache.anchor.deleted", "deleted": True}
    assert answer(live, "ls")["data"] == []


def test_a_name_is_shown_as_it_is_but_for_what_acts_on_a_terminal(
    live: LiveServer, client: Client, tmp_path: Path
) -> None:
    (anchor,) = warmed(live, tmp_path, request("You look after books."))
    answer(live, "pin", anchor["id"], "--name", "[/b][red] :bug: \x1b[2J")
    assert "  [/b][red] :bug: \ufffd[2J  " in run(live, "ls").stdout
    folder = tmp_path / "[/b]"
    folder.mkdir(parents=True)
    path = folder / "[red].json"
    path.write_text(json.dumps(request("You look after books.")))
    assert f"{path}:" in run(live, "warm", path).stderr.replace("\n", "")


def test_what_nobody_pinned_makes_room_for_an_anchor(test_llama_model: Model, tmp_path: Path) -> None:
    config = EngineConfig(cache_ram_bytes=1 << 20, eviction="none")
    with serving(test_llama_model, config, server=ServerConfig(port=0)) as live, Client(live.url) as client:
        for number in range(30):
            client.chat(request("You count.", f"Conversation {number}: " + "one two three " * 50))
        assert client.get("/cache")["counters"]["unsaved"]["no_room"] > 0
        (anchor,) = warmed(live, tmp_path, request("You look after books. " * 100))
        assert answer(live, "ls")["data"][-1]["id"] == anchor["id"]


def test_clearing_spares_the_pins_unless_told(live: LiveServer, client: Client, tmp_path: Path) -> None:
    (anchor,) = warmed(live, tmp_path, request("You look after books."))
    client.chat({**request("You mend shoes.", "hi"), "tools": []})
    assert answer(live, "clear")["kept_bytes"] >= anchor["bytes"]
    assert anchor["id"] in run(live, "ls").stdout
    emptied = answer(live, "clear", "--pins")
    assert emptied["freed_bytes"] >= anchor["bytes"]
    assert emptied["kept_bytes"] == 0
    assert answer(live, "ls")["data"] == []


def test_figures_are_shown_by_their_names(live: LiveServer, client: Client) -> None:
    rows = [line.split("  ", 1) for line in run(live, "stats").stdout.splitlines()]
    shown = {name: value.strip() for name, value in rows}
    assert shown["enabled"] == "yes"
    assert shown["pin budget bytes"] == "128KiB"
    assert shown["restore failures"] == "0"


def test_a_refusal_lists_what_takes_the_room(live: LiveServer, client: Client, tmp_path: Path) -> None:
    (kept,) = warmed(live, tmp_path, request("You look after books. " * 20))
    large = tmp_path / "large.json"
    large.write_text(json.dumps(request("You mend shoes, boots and bags. " * 20)))
    result = run(live, "warm", large)
    assert result.exit_code == 1
    first, *rest = result.stderr.strip().splitlines()
    assert first.startswith("Error: HTTP 409: ")
    assert [line.split()[0] for line in rest] == [kept["id"]]


def test_another_kind_of_server_is_told_from_ours() -> None:
    app = Starlette(routes=[Route("/cache", lambda request: PlainTextResponse("hello"))])
    with listening(app, ServerConfig(port=0)) as url:
        result = CliRunner().invoke(cli, ["cache", "stats", "--url", url])
    assert (result.exit_code, result.stderr) == (1, f"Error: {url}/cache did not answer with JSON\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("unpin", "anchor_x"), "HTTP 404: no anchor has the id 'anchor_x' among those of test:llama"),
        (("ls", "--cache-disk", ".", "--model", "x"), "--model is a server's and --cache-disk a directory"),
        (("pin", "anchor_x/y"), "HTTP 404: "),
        (("pin", "anchor_x", "--ttl", "5y"), "HTTP 400: ttl must be"),
        (("warm", "/no/such/file"), "/no/such/file cannot be read"),
        (("lst",), "did you mean ls?"),
        (("ls", "--jason"), "did you mean --json?"),
        (("ls", "--url", "http://127.0.0.1:1"), "no answer from http://127.0.0.1:1: "),
        (("ls", "--url", "nonsense"), "no answer from nonsense: "),
        (("ls", "--url", "http://[::1"), "http://[::1 is no URL: "),
        (("ls", "--api-key", "wrong"), "HTTP 401: "),
        (("ls", "--api-key", "né"), "HTTP 401: "),
        (("pin", "anchor_x", "--ttl", "nan"), "HTTP 400: ttl must be"),
        (("pin", "anchor_x", "--ttl", "1e400"), "HTTP 400: ttl must be"),
    ],
)
def test_what_cannot_be_done_is_one_line(live: LiveServer, arguments: tuple[str, ...], said: str) -> None:
    result = run(live, *arguments)
    assert result.exit_code != 0
    assert said in result.stderr.splitlines()[-1]
    assert isinstance(result.exception, SystemExit)
