"""The disk tier of a server in a process of its own: killed, stopped, started again, and started twice."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest

from anchorline.bench import agent
from anchorline.bench.client import Answer, Client
from anchorline.bench.process import ServerFailed, ServerProcess, start_anchorline
from anchorline.disk.files import Files
from anchorline.disk.format import decode_header
from anchorline.disk.offline import look

SMALL = ("--threads", "1", "--ctx", "4096", "--cache-ram", "64m", "--resident-idle", "0", "--no-seal")


@contextmanager
def running(directory: Path, *arguments: str, model: str = "test:llama") -> Iterator[tuple[ServerProcess, Client]]:
    """A server over ``directory`` that has read its index."""
    command = [model, *SMALL, "--cache-disk", str(directory), *arguments]
    with start_anchorline(command) as server, Client(server.wait_until_listening()) as client:
        while client.get("/health")["cache_disk"] != "on":
            pass
        yield server, client


def kill(server: ServerProcess) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.wait()


def disk_at_rest(client: Client) -> dict[str, Any]:
    """The figures of the disk tier once everything is written."""
    while True:
        cache: dict[str, Any] = client.get("/cache")
        if not cache["pending_saves"] and not cache["disk"]["pending_writes"]:
            found: dict[str, Any] = cache["disk"]
            return found


class Conversation:
    """An agent's, one turn after another."""

    def __init__(self) -> None:
        self.messages: list[agent.Message] = []

    def turn(self, client: Client) -> Answer:
        name = ascii_lowercase[len(self.messages)]  # one token, whichever it is
        self.messages.append(agent.user(f"What is in file {name}, and why? " * 5))
        answer = client.chat(agent.chat_body(self.messages, max_tokens=12))
        self.messages.append(agent.assistant(answer.text))
        return answer


@pytest.mark.parametrize(
    "model",
    [
        "test:qwen35",
        pytest.param("test:llama", marks=pytest.mark.slow),
        pytest.param("test:gemma3", marks=pytest.mark.slow),
        pytest.param("smollm2", marks=pytest.mark.slow),
    ],
)
def test_a_killed_server_costs_no_more_than_the_delta_of_the_next_turn(model: str, tmp_path: Path) -> None:
    conversation = Conversation()
    with running(tmp_path, model=model) as (server, client):
        turns = [conversation.turn(client) for _ in range(5)]
        assert disk_at_rest(client)["records"] > 0
        kill(server)
    (namespace,) = look(tmp_path, Files())
    assert namespace.described is not None
    assert namespace.described.label == model
    with running(tmp_path, model=model) as (_, client):
        after = conversation.turn(client)
    assert after.timings["disk_n"] == after.cached_tokens
    # As each turn before did, it goes on where the one before it ended.
    assert after.prefilled_tokens <= turns[-1].prefilled_tokens + 4
    assert after.cached_tokens >= turns[-1].prompt_tokens - 4


def test_a_stopped_server_writes_what_it_has_still_to_save(tmp_path: Path) -> None:
    conversation = Conversation()
    with running(tmp_path) as (server, client):
        first = conversation.turn(client)
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait() == 0
    with running(tmp_path) as (_, client):
        assert conversation.turn(client).timings["disk_n"] >= first.prompt_tokens


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    with running(tmp_path / "new" / "tier") as (_, client):
        Conversation().turn(client)
        disk_at_rest(client)
    found = list((tmp_path / "new").rglob("*"))
    assert found
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_clearing_answers_once_the_files_are_gone_also_those_that_fit_no_history(tmp_path: Path) -> None:
    conversation = Conversation()
    with running(tmp_path) as (_, client):
        for _ in range(3):
            conversation.turn(client)
        disk_at_rest(client)
    files = sorted(tmp_path.rglob("*.segment"))
    roots = [path for path in files if not decode_header(path.read_bytes()).record.start]
    for path in roots:
        path.unlink()
    with running(tmp_path) as (_, client):
        assert client.get("/cache")["disk"]["counters"]["unattached"] == {"orphan": len(files) - len(roots)}
        assert client.post("/cache/clear", {"pins": True})["undeleted_files"] == 0
        assert list(tmp_path.rglob("*.segment")) == []


def test_what_another_namespace_left_is_not_used(tmp_path: Path) -> None:
    conversation = Conversation()
    with running(tmp_path) as (_, client):
        conversation.turn(client)
        used = disk_at_rest(client)["used_bytes"]
    with running(tmp_path, "-ctk", "f32", "-ctv", "f32") as (_, client):
        figures = client.get("/cache")["disk"]
        assert (figures["records"], figures["used_bytes"]) == (0, used)
        assert conversation.turn(client).cached_tokens == 0


def test_a_second_server_on_one_directory_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        second = start_anchorline(["test:llama", *SMALL, "--cache-disk", str(tmp_path)])
        with second, pytest.raises(ServerFailed, match=r"--cache-disk.*in use by another server"):
            second.wait_until_listening()
        assert client.get("/health")["cache_disk"] == "on"


def test_test_models_and_servers_without_a_cache_leave_no_files(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for arguments in ([], ["--no-cache", "--cache-disk", str(tmp_path / "tier")]):
        server = start_anchorline(["test:llama", *SMALL, *arguments], environment=environment)
        with server, Client(server.wait_until_listening()) as client:
            assert client.get("/health") == {"status": "ok"}
            assert client.get("/cache")["disk"] is None
    assert not list(tmp_path.iterdir())
