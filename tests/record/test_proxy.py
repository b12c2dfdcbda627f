"""The proxy: everything goes through as it came, and the calls that generate are written."""

from __future__ import annotations

import http.client
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from anchorline.bench.client import server_url
from anchorline.bench.trace import read_trace
from anchorline.config import ServerConfig
from anchorline.errors import ConfigError
from anchorline.limits import Limits
from anchorline.record.proxy import check_no_loop, passed_on
from anchorline.record.recorder import NO_OBJECT, UNANSWERED
from anchorline.server.serve import open_socket
from tests.record.upstream import EVENTS, Upstream, recording
from tests.server.support import free_port, listening

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[Upstream, str]]:
    upstream = Upstream()
    with listening(upstream.app, ServerConfig(port=0)) as url:
        yield upstream, url


@pytest.fixture
def upstream(serving: tuple[Upstream, str]) -> Upstream:
    serving[0].seen.clear()
    serving[0].left.clear()
    return serving[0]


@pytest.fixture
def upstream_at(serving: tuple[Upstream, str], upstream: Upstream) -> str:
    return serving[1]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def closed_port() -> str:
    return f"http://127.0.0.1:{free_port()}"


def test_a_call_goes_through_as_it_came(upstream: Upstream, upstream_at: str, trace: Path) -> None:
    headers = {"authorization": "Bearer secret", "x-mine": "1", "connection": "x-hop", "x-hop": "1"}
    body = b' {"messages": [], "n": 1.50}'
    with recording(upstream_at, trace) as (url, _):
        answer = httpx.post(f"{url}{CHAT}?beta=a%20b", content=body, headers=headers)
    ((request, received),) = upstream.seen
    assert received == body
    assert request.url.path == CHAT
    assert request.url.query == "beta=a%20b"
    assert request.headers["host"] == upstream_at.removeprefix("http://")
    assert (request.headers["authorization"], request.headers["x-mine"]) == ("Bearer secret", "1")
    assert "x-hop" not in request.headers
    assert answer.content == b'{"ok": 1}'
    assert answer.headers["x-served"] == "yes"
    assert answer.headers["content-length"] == "9"
    assert len(answer.headers.get_list("date")) == 1


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
def test_other_calls_go_through_and_are_not_written(
    upstream: Upstream, upstream_at: str, trace: Path, method: str
) -> None:
    with recording(upstream_at, trace) as (url, _):
        assert httpx.request(method, f"{url}/v1/models/a%2Fb").json() == {"ok": 1}
        assert httpx.post(f"{url}/tokenize", json={"content": "a"}).json() == {"ok": 1}
    assert upstream.seen[0][0].scope["raw_path"] == b"/v1/models/a%2Fb"
    assert read_trace(trace).requests == ()


@pytest.mark.parametrize(
    "target", [f"{CHAT}/../../x", f"{CHAT}/.", "/v1/%2e%2E/x", "/..", f"{CHAT}#x"], ids=lambda target: target[-8:]
)
def test_a_path_that_would_reach_the_upstream_as_another_is_refused(
    upstream: Upstream, upstream_at: str, trace: Path, target: str
) -> None:
    with recording(upstream_at, trace) as (url, _):
        connection = http.client.HTTPConnection(url.removeprefix("http://"))  # sends the path as it is
        connection.request("POST", target, body="{}", headers={"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 400
        assert "must have no '.'" in json.loads(answer.read())["error"]["message"]
        connection.close()
    assert upstream.seen == []


def test_a_stream_goes_through_byte_for_byte(upstream_at: str, trace: Path, upstream: Upstream) -> None:
    with (
        recording(upstream_at, trace) as (url, _),
        httpx.stream("POST", f"{url}{CHAT}", json=chat("stream")) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b"".join(answer.iter_raw()) == b"".join(EVENTS)


def test_events_are_passed_on_at_once_and_leaving_is_too(upstream: Upstream, upstream_at: str, trace: Path) -> None:
    with recording(upstream_at, trace) as (url, _):
        with httpx.stream("POST", f"{url}{CHAT}", json=chat("hold")) as answer:
            assert next(answer.iter_raw()) == EVENTS[0]
        assert upstream.left.wait(timeout=30)
    assert len(read_trace(trace).requests) == 1


def test_a_call_under_way_at_the_end_is_written(upstream: Upstream, upstream_at: str, trace: Path) -> None:
    with ExitStack() as running:
        url, recorder = running.enter_context(recording(upstream_at, trace))
        with httpx.stream("POST", f"{url}{CHAT}", json=chat("hold")) as answer:
            assert next(answer.iter_raw()) == EVENTS[0]
            running.close()
    assert upstream.left.wait(timeout=30)
    assert recorder.taken == len(read_trace(trace).requests) == 1


def test_an_answer_that_breaks_off_does_so_for_the_client(upstream_at: str, trace: Path) -> None:
    with (
        recording(upstream_at, trace) as (url, recorder),
        httpx.stream("POST", f"{url}{CHAT}", json=chat("cut")) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        answer.read()
    assert recorder.left_out == {UNANSWERED: 1}


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (CHAT, CHAT),
        ("/chat/completions", CHAT),
        ("/completions", "/v1/completions"),
        ("/v1/messages", "/v1/messages"),
        ("/responses", "/v1/responses"),
    ],
)
def test_calls_that_generate_are_written(upstream_at: str, trace: Path, path: str, named: str) -> None:
    body = chat("Hello", stream=False, max_tokens=5)
    with recording(upstream_at, trace, keep_text=True) as (url, recorder):
        httpx.post(url + path, json=body, headers={"authorization": "Bearer secret"}, params={"key": "secret"})
    (request,) = read_trace(trace).requests
    assert (request.path, request.body) == (named, body)
    assert 0 < request.arrival_seconds < request.end_seconds
    assert recorder.taken == 1
    assert "secret" not in trace.read_text()


def test_wording_is_replaced_unless_it_is_to_be_kept(upstream_at: str, trace: Path) -> None:
    with recording(upstream_at, trace) as (url, _):
        httpx.post(url + CHAT, json=chat("My password is swordfish"))
    (request,) = read_trace(trace).requests
    (message,) = request.body["messages"]
    assert message["role"] == "user"
    assert len(message["content"]) == len("My password is swordfish")
    assert "swordfish" not in trace.read_text()


def test_refused_calls_are_not_written(upstream_at: str, trace: Path) -> None:
    with recording(upstream_at, trace) as (url, recorder):
        answer = httpx.post(url + CHAT, json=chat("refuse"))
        httpx.post(url + CHAT, content=b"[1]")
        httpx.post(url + CHAT, content=b'{"a": "\xff"}')
    assert (answer.status_code, answer.headers["retry-after"], answer.text) == (429, "7", "no")
    assert recorder.left_out == {"the upstream refused the call with status 429": 1, NO_OBJECT: 2}
    assert trace.read_bytes() == b""


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_an_upstream_that_is_down_is_named(trace: Path, path: str) -> None:
    upstream_at = closed_port()
    with recording(upstream_at, trace) as (url, recorder):
        answer = httpx.post(url + path, json=chat("a"))
    assert answer.status_code == 502
    assert upstream_at in answer.json()["error"]["message"]
    assert recorder.left_out == {UNANSWERED: 1}


def test_a_status_that_there_is_not_is_a_bad_gateway(trace: Path) -> None:
    class Odd(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Odd) as odd:
        threading.Thread(target=odd.handle_request, daemon=True).start()
        with recording(f"http://127.0.0.1:{odd.server_address[1]}", trace) as (url, _):
            answer = httpx.get(f"{url}/v1/models")
    assert answer.status_code == 502
    assert "its status is 999" in answer.json()["error"]["message"]


def test_bodies_and_pages_of_other_sites_are_bounded(upstream: Upstream, upstream_at: str, trace: Path) -> None:
    with recording(upstream_at, trace, limits=Limits(body_bytes=1024)) as (url, _):
        large = httpx.post(url + CHAT, content=b"a" * 1025)
        page = httpx.post(url + CHAT, json={}, headers={"origin": "https://evil.example"})
        rebound = httpx.post(url + CHAT, json={}, headers={"host": "evil.example"})
    assert (large.status_code, page.status_code, rebound.status_code) == (413, 403, 403)
    assert "--max-body-bytes" in large.json()["error"]["message"]
    assert upstream.seen == []


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_the_upstream_may_be_given_with_or_without_v1(ending: str) -> None:
    assert str(server_url("http://127.0.0.1:8080" + ending, flag="--upstream")) in (
        "http://127.0.0.1:8080",
        "http://127.0.0.1:8080/",
    )
    assert str(server_url("https://some.where/api" + ending, flag="--upstream")) == "https://some.where/api"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://a", "http://", "http://a?b", "http://u:p@a", "http://a:b", "http://a:65536"]
)
def test_what_is_no_upstream_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--upstream"):
        server_url(url, flag="--upstream")


def test_headers_of_one_connection_stay_behind() -> None:
    given = [(b"Connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"TE", b"x"), (b"X-A", b"1"), (b"x-a", b"2")]
    assert passed_on([*given, (b"Host", b"h")], besides=(b"host",)) == [(b"x-a", b"1"), (b"x-a", b"2")]


def test_a_length_that_chunks_overrule_stays_behind() -> None:
    length = (b"content-length", b"9")
    assert passed_on([length, (b"Transfer-Encoding", b"chunked")]) == []
    assert passed_on([length]) == [length]


def test_a_path_prefix_of_the_upstream_is_put_in_front(upstream: Upstream, upstream_at: str, trace: Path) -> None:
    with recording(upstream_at + "/api/v1", trace) as (url, _):
        httpx.post(url + CHAT, json=chat("a"))
    assert upstream.seen[0][0].url.path == "/api" + CHAT
    assert json.loads(trace.read_text())["path"] == CHAT


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"])
def test_a_proxy_is_not_its_own_upstream(host: str) -> None:
    with open_socket(ServerConfig(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match="itself listens"):
            check_no_loop(server_url(f"http://{host}:{port}/v1", flag="--upstream"), listener)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://127.0.0.1", "https://127.0.0.1", "http://127.0.0.2:PORT"]
)
def test_any_other_server_is(url: str) -> None:
    with open_socket(ServerConfig(port=0)) as listener:
        check_no_loop(server_url(url.replace("PORT", str(listener.getsockname()[1])), flag="--upstream"), listener)
