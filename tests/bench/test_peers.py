"""What is read from the answers of other servers, which are stood in for here by scripted ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from anchorline.bench.client import CallFailed
from anchorline.bench.oracle import as_tokens
from anchorline.bench.peers import (
    UVICORN_LISTENING,
    LlamaCppPythonServer,
    LlamaServer,
    PeerSettings,
    can_import,
)
from anchorline.bench.process import ServerProcess
from anchorline.bench.standing.servers import PEERS, TUNED, find_pythons
from anchorline.errors import ConfigError

SETTINGS = PeerSettings(model=Path("model.gguf"), context_tokens=4096)
TIMINGS = {"prompt_n": 7, "cache_n": 93, "prompt_ms": 12.5}


class Answering(HTTPServer):
    """Answers every call with the same events and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, json.loads(body)))
        self.send_response(200)
        self.end_headers()
        for event in self.server.events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def answering() -> Iterator[Answering]:
    with Answering() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def script(folder: Path, text: str, *, name: str = "python") -> str:
    """A program that stands in for a Python."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def listening(answering: Answering, tmp_path: Path) -> str:
    """A Python whose server says that it listens, as both peers say it, and goes on until it is told to end."""
    said = f"listening on {answering.url} Uvicorn running on {answering.url} (Press CTRL+C to quit)"
    return script(tmp_path, f"echo '{said}' >&2; exec sleep 600")


def test_llama_servers_ids_and_counts_are_put_together_from_its_events(answering: Answering, listening: str) -> None:
    answering.events = [{"tokens": [5]}, {"tokens": [6, 7]}, {"tokens": [], "stop": True, "timings": TIMINGS}]
    with LlamaServer(SETTINGS, python=listening) as peer:
        answer = peer.complete(as_tokens([1, 2, 3]), max_tokens=8)
    assert (answer.prompt_tokens, answer.prefilled_tokens, answer.prefill_ms) == (100, 7, 12.5)
    assert answer.reply_tokens.tolist() == [5, 6, 7]
    assert answer.ttft_ms is not None
    ((path, body),) = answering.asked
    assert (path, body["prompt"], body["n_predict"], body["stream"]) == ("/completion", [1, 2, 3], 8, True)


def test_an_answer_of_llama_server_that_breaks_off_is_no_answer(answering: Answering, listening: str) -> None:
    answering.events = [{"tokens": [5]}]
    with LlamaServer(SETTINGS, python=listening) as peer, pytest.raises(CallFailed, match="ended its answer early"):
        peer.complete(as_tokens([1]), max_tokens=8)


def test_llama_cpp_python_gets_text_and_is_timed(answering: Answering, listening: str) -> None:
    peer = LlamaCppPythonServer(SETTINGS, python=listening)
    try:
        with pytest.raises(CallFailed, match="no token"):
            peer.complete("some text", max_tokens=8)
        answering.events = [{"choices": [{"text": "a"}]}]
        assert peer.complete("some text", max_tokens=8) > 0
    finally:
        peer.close()
    assert {(path, body["prompt"]) for path, body in answering.asked} == {("/v1/completions", "some text")}


def test_a_server_may_say_in_its_own_words_that_it_listens(tmp_path: Path) -> None:
    said = "INFO:     Uvicorn running on http://127.0.0.1:4711 (Press CTRL+C to quit)"
    command = [script(tmp_path, f"echo '{said}' >&2")]
    with ServerProcess(command, listening=UVICORN_LISTENING) as server:
        assert server.wait_until_listening() == "http://127.0.0.1:4711"


def test_each_peer_runs_in_the_first_python_that_has_its_package(tmp_path: Path) -> None:
    nothing = script(tmp_path, "exit 1", name="nothing")
    first = script(tmp_path, 'test "$2" = "import xllamacpp"', name="first")
    second = script(tmp_path, "exit 0", name="second")
    assert find_pythons(PEERS, [nothing, first, second]) == {
        "llama-server": first,
        TUNED: first,
        "llama-cpp-python": second,
    }
    assert find_pythons(PEERS, [nothing]) == {}


def test_a_python_that_is_not_there_is_named() -> None:
    assert can_import(sys.executable, "json")
    with pytest.raises(ConfigError, match="--peer-python /no/such/python"):
        can_import("/no/such/python", "json")
