"""The listening socket, and a server's end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext

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


def test_connections_wait_for_a_server_that_is_still_starting() -> None:
    with site() as here, open_socket(here.state.config) as listener:
        url = url_of(listener)
        early = socket.create_connection(listener.getsockname())
        early.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        server = make_server(here.app)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        with early:
            assert early.recv(100).startswith(b"HTTP/1.1 200")
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive()


PROGRAM = """
import json
from tests.server.support import site
from anchorline.server.serve import open_socket, serve, url_of
with site() as here:
    here.engine.script.paused = True
    here.engine.allow(1)
    with open_socket(here.state.config) as listener:
        print(url_of(listener), flush=True)
        serve(here.app, here.state.config, listener=listener, shutdown_seconds=1)
    print(json.dumps([request.id in here.engine.cancelled for request in here.engine.submitted]), flush=True)
"""
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_ends_the_server_in_order(number: signal.Signals, busy: bool) -> None:
    """Exit code 0 without a second signal; a stream that would go on for ever is cancelled."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert httpx.get(f"{url}/health").status_code == 200  # the handlers are installed
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY) if busy else nullcontext() as response:
                lines = response.iter_lines() if response is not None else iter([""])
                next(lines)  # kept, since dropping it would close the stream
                process.send_signal(number)
                assert json.loads(process.stdout.readline()) == [True] * busy
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
