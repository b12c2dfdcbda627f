"""The listening socket, and a server's end."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest

from anchorline.config import ServerConfig
from anchorline.errors import ConfigError
from anchorline.server.serve import check_bind, make_server, open_socket, url_of
from tests.server.support import site


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])
def test_a_public_address_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        check_bind(ServerConfig(host=host))
    check_bind(ServerConfig(host=host, api_keys=("k",)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_loopback_needs_none(host: str) -> None:
    check_bind(ServerConfig(host=host))


def test_an_unknown_host_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="--host"):
        check_bind(ServerConfig(host="no.such.host.invalid"))
    with pytest.raises(ConfigError, match="--host"):
        open_socket(ServerConfig(host="203.0.113.1", port=0, api_keys=("k",)))


def test_a_busy_port_is_a_config_error_that_names_it() -> None:
    with open_socket(ServerConfig(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port} is in use"):
            open_socket(ServerConfig(port=port))
    open_socket(ServerConfig(port=port)).close()


def test_accepted_connections_do_not_wait_for_acknowledgements() -> None:
    with open_socket(ServerConfig(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # what asyncio looks at before it sets TCP_NODELAY


def test_urls_of_sockets() -> None:
    with open_socket(ServerConfig(port=0)) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_signals_with_nothing_more_to_say_cannot_nest() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with site() as here:
        server = make_server(here.app, here.state.config)
        try:
            server.handle_signals()
            server.handle_exit(signal.SIGTERM, None)
            assert server.should_exit
            handler = signal.getsignal(signal.SIGTERM)
            assert callable(handler)
            assert not hasattr(handler, "__code__")  # a function of Python's could be interrupted by the next
        finally:
            signal.signal(signal.SIGTERM, before[0])
            signal.signal(signal.SIGINT, before[1])


def test_connections_wait_for_a_server_that_is_still_starting() -> None:
    with site() as here, open_socket(here.state.config) as listener:
        url = url_of(listener)
        early = socket.create_connection(listener.getsockname())
        early.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        server = make_server(here.app, here.state.config)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        with early:
            assert early.recv(100).startswith(b"HTTP/1.1 200")
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_calls_that_still_run_are_told_with_their_time(caplog: pytest.LogCaptureFixture) -> None:
    config = ServerConfig(port=0, shutdown_seconds=1000)
    with caplog.at_level(logging.INFO, "anchorline.server"), site(config=config) as here:
        here.engine.script.paused = True
        here.engine.script.reply = b"x" * 100
        here.engine.allow(1)
        with open_socket(config) as listener:
            server = make_server(here.app, config)
            thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
            thread.start()
            url = f"{url_of(listener)}/v1/chat/completions"
            with httpx.stream("POST", url, json=BODY | {"stream": True}) as response:
                lines = response.iter_lines()
                next(lines)
                server.should_exit = True
                server.hurry()
                assert any("shutting_down" in line for line in lines)
            thread.join(timeout=30)
            assert not thread.is_alive()
    assert [message for message in caplog.messages if message.startswith("stopping")] == [
        "stopping; running calls: 1, which have 1000 s more; another SIGINT (Ctrl-C) ends them now"
    ]


PROGRAM = """
import json, socket, sys
from anchorline.config import ServerConfig
from anchorline.server.serve import open_socket, serve, url_of
from tests.server.support import site
with site(config=ServerConfig(port=0, shutdown_seconds=float(sys.argv[1]))) as here:
    here.engine.script.paused = True
    here.engine.script.reply = b"x" * 20000
    here.engine.allow(int(sys.argv[2]))
    with open_socket(here.state.config) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        serve(here.app, here.state.config, listener=listener, ready=lambda: print(url_of(listener), flush=True))
    print(json.dumps([request.id in here.engine.cancelled for request in here.engine.submitted]), flush=True)
    sys.stdin.read()  # what a process does after its server, such as waiting for a thread
print("freed", flush=True)
"""
BODY = {"messages": [{"role": "user", "content": "hi"}]}


@contextlib.contextmanager
def program(*, shutdown_seconds: float, tokens: int = 1) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program above with its URL."""
    command = [sys.executable, "-c", PROGRAM, str(shutdown_seconds), str(tokens)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and what was still said, once the program may go on."""
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_rests(number: signal.Signals) -> None:
    with program(shutdown_seconds=1000) as (process, url):
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(number)
        assert ended(process) == (0, "[]\nfreed\n", "")


def test_a_stream_that_outlasts_the_time_ends_with_an_error_event() -> None:
    with program(shutdown_seconds=0.2) as (process, url):
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY | {"stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            said = [line for line in lines if line]
        error = json.loads(said[-1].removeprefix("data: "))["error"]
        assert (error["message"], error["code"]) == ("the server is shutting down", "shutting_down")
        assert ended(process) == (0, "[true]\nfreed\n", "")


@pytest.mark.parametrize("begun", [False, True])
def test_a_call_without_an_answer_gets_a_503(begun: bool) -> None:
    """Also one whose body is still on its way."""
    with program(shutdown_seconds=0.2) as (process, url), client_of(url) as client:
        body = json.dumps(BODY).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        client.sendall(head + body if begun else head + body[:5])
        assert httpx.get(f"{url}/health").status_code == 200  # so the first was taken in
        process.send_signal(signal.SIGTERM)
        answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 503")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "shutting_down"
        code, out, err = ended(process)
        assert (code, err) == (0, "")
        assert out.endswith("freed\n")


def test_half_a_head_does_not_keep_a_server() -> None:
    with program(shutdown_seconds=1000) as (process, url), client_of(url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: loc")
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, "[]\nfreed\n", "")


def test_a_client_that_does_not_read_does_not_keep_a_server() -> None:
    """The answer cannot be sent, not even its end: the connection is cut."""
    with program(shutdown_seconds=0.1, tokens=20000) as (process, url), client_of(url, receive_bytes=4096) as client:
        body = json.dumps(BODY | {"stream": True}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        client.sendall(head + body)
        assert client.recv(1)
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, "[true]\nfreed\n", "")


def test_a_second_interrupt_ends_the_calls_at_once() -> None:
    with program(shutdown_seconds=1000) as (process, url):
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY | {"stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            refused_soon(url)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            assert any("shutting_down" in line for line in lines)
        assert ended(process)[0] == 0


def test_signals_do_not_interrupt_what_follows_the_server() -> None:
    with program(shutdown_seconds=0) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "[]\n"
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        assert ended(process) == (0, "freed\n", "")


def test_a_third_interrupt_leaves_at_once_and_frees_nothing() -> None:
    with program(shutdown_seconds=1000) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "[]\n"
        process.send_signal(signal.SIGINT)
        while process.poll() is None:  # two signals at once may arrive as one
            process.send_signal(signal.SIGINT)
        code, out, err = ended(process)
        assert (code, out) == (128 + signal.SIGINT, "")
        assert err == "stopped by a third signal: nothing was waited for\n"


def client_of(url: str, *, receive_bytes: int | None = None) -> socket.socket:
    """A connection, which takes in no more than ``receive_bytes`` without being read."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(30)
    client.connect((httpx.URL(url).host, httpx.URL(url).port))
    return client


def refused_soon(url: str) -> None:
    """Until the server takes no connections any more."""
    while True:
        try:
            client_of(url).close()
        except ConnectionError:
            return
