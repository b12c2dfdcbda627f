"""Connections that never finish, too many of them, and bodies that do not arrive."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import errno
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from anchorline.config import ServerConfig
from anchorline.limits import Limits
from anchorline.server.connection import REFUSALS, on_loop_error
from tests.server.support import Site, listening, site

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n"
HALF_A_HEAD = b"GET /health HTTP/1.1\r\nhost: loc"


@contextlib.contextmanager
def served(**limits: float) -> Iterator[tuple[Site, str]]:
    config = ServerConfig(port=0, limits=Limits(**limits))  # type: ignore[arg-type]
    with site(config=config) as here, listening(here.app, config) as url:
        yield here, url


@contextlib.contextmanager
def connected(url: str, *sent: bytes) -> Iterator[list[socket.socket]]:
    """One connection for each of ``sent``."""
    with contextlib.ExitStack() as stack:
        address = (httpx.URL(url).host, httpx.URL(url).port)
        clients = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in sent]
        for client, data in zip(clients, sent, strict=True):
            client.sendall(data)
        yield clients


def closed(client: socket.socket) -> bytes:
    """What still came until the server closed the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65536):
            data += part
    return data


@pytest.mark.parametrize("sent", [b"", b"G", HALF_A_HEAD])
def test_a_request_that_is_never_sent_is_given_up(sent: bytes) -> None:
    with served(request_seconds=0.1) as (_, url), connected(url, sent) as (client,):
        assert closed(client) == b""
        assert httpx.get(f"{url}/health").status_code == 200


def test_more_bytes_do_not_prolong_the_time_for_a_head() -> None:
    with served(request_seconds=0.3) as (_, url), connected(url, HALF_A_HEAD) as (client,):
        client.settimeout(0.02)
        while True:
            try:
                client.sendall(b"x")
                if not client.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break


def test_a_second_request_that_is_half_sent_is_given_up_too() -> None:
    whole = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with served(request_seconds=0.1) as (_, url), connected(url, whole) as (client,):
        seen = b""
        while b'"ok"}' not in seen:
            seen += client.recv(65536)
        client.sendall(HALF_A_HEAD)
        assert closed(client) == b""


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/tokenize", b"/apply-template", b"/api/show"])
def test_a_body_that_never_arrives_is_408(path: bytes) -> None:
    head = (POST % 1000).replace(b"/v1/chat/completions", path)
    with served(request_seconds=0.1) as (here, url), connected(url, head + b"{") as (client,):
        answer = closed(client)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer
        assert b"--request-timeout" in answer
        assert here.engine.submitted == []


def test_the_time_for_a_request_does_not_end_its_reply() -> None:
    whole = POST % len(BODY) + BODY
    with served(request_seconds=0.1) as (here, url), connected(url, whole, HALF_A_HEAD) as (caller, half):
        here.engine.script.paused = True
        assert closed(half) == b""  # so much time is over
        here.engine.allow(100)
        assert caller.recv(65536).startswith(b"HTTP/1.1 200")


def test_what_a_client_goes_on_sending_after_its_answer_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anchorline.server.connection.LINGER_SECONDS", 0.1)
    with served(body_bytes=1024) as (_, url), connected(url, POST % (1 << 30)) as (client,):
        assert client.recv(65536).startswith(b"HTTP/1.1 413")
        client.settimeout(0.02)
        while True:
            try:
                client.sendall(b"x")
                if not client.recv(65536):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, POST % 1000 + b"{"])
def test_a_new_client_takes_the_place_of_one_that_does_not_finish(sent: bytes) -> None:
    with served(connections=3, request_seconds=1000.0) as (_, url), connected(url, *[sent] * 3) as clients:
        for _ in range(3):
            assert httpx.get(f"{url}/health").status_code == 200
        closed(clients[0])


def test_when_all_are_served_a_new_client_gets_a_503() -> None:
    with served(connections=2) as (here, url), connected(url, *[POST % len(BODY) + BODY] * 2) as clients:
        here.engine.script.paused = True
        here.engine.wait_for_submission(2)
        refused = httpx.get(f"{url}/health")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "too_many_connections"
        here.engine.allow(1000)
        assert all(client.recv(65536).startswith(b"HTTP/1.1 200") for client in clients)
        assert httpx.get(f"{url}/health").status_code == 200


def test_far_too_many_are_cut() -> None:
    calls = [POST % len(BODY) + BODY] * 2
    with served(connections=2) as (here, url), connected(url, *calls):
        here.engine.script.paused = True
        here.engine.wait_for_submission(2)
        with connected(url, *[b""] * (2 * REFUSALS)) as clients:
            assert all(closed(client) == b"" for client in clients)
        here.engine.allow(1000)


WITHOUT_DESCRIPTORS = """
import logging, resource, sys
from tests.server.support import site
from anchorline.server.serve import open_socket, serve, url_of
logging.basicConfig(level=logging.WARNING, format="%(message)s")
with site() as here, open_socket(here.state.config) as listener:
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    serve(here.app, here.state.config, listener=listener, ready=lambda: print(url_of(listener), flush=True))
"""


def test_without_file_descriptors_the_log_is_not_flooded() -> None:
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            url = process.stdout.readline().strip()
            with connected(url, *[HALF_A_HEAD] * 60):
                said = process.stderr.readline()
                assert said == "no new connections for a second: Too many open files\n"
            assert httpx.get(f"{url}/health", timeout=30).status_code == 200
            process.terminate()
            assert len(process.communicate()[1].splitlines()) < 10
            assert process.returncode == 0
        finally:
            process.kill()


@pytest.mark.anyio
async def test_other_errors_of_the_loop_are_shown_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    out = OSError(errno.EMFILE, "many")
    on_loop_error(loop, {"message": "socket.accept() out of system resource", "exception": out})
    on_loop_error(loop, {"message": "a task failed", "exception": ValueError("why")})
    assert [(record.levelno, record.getMessage().splitlines()[0]) for record in caplog.records] == [
        (logging.WARNING, "no new connections for a second: many"),
        (logging.ERROR, "a task failed"),
    ]


@pytest.mark.anyio
async def test_a_byte_order_mark_before_the_body_is_skipped(here: Site) -> None:
    async with here.client() as client:
        response = await client.post("/v1/chat/completions", content=codecs.BOM_UTF8 + BODY)
        assert response.status_code == 200
        for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF8 * 2):
            assert (await client.post("/v1/chat/completions", content=mark + BODY)).status_code == 400


def test_who_takes_nothing_of_a_reply_makes_room_for_others() -> None:
    asked = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 2000  # more than the kernel buffers
    with served(connections=1) as (_, url), connected(url, asked):
        answers = (httpx.get(f"{url}/health").status_code for _ in range(500))
        assert 200 in answers
