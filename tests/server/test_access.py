"""Who may talk to the server."""

from __future__ import annotations

import pytest

from anchorline.config import ServerConfig
from anchorline.server.access import AccessGuard, is_loopback_name, split_host
from tests.server.support import Site, site

pytestmark = pytest.mark.anyio

OPEN_HOSTS = [
    *("127.0.0.1", "localhost", "LOCALHOST:8080", "[::1]:8080", "127.1.2.3", "app.localhost"),
    *("localhost.", "localhost.:8080", "localhost:", "[::ffff:127.0.0.1]:8080", "::1"),
]
FOREIGN_HOSTS = [
    *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.5", "", "[::2]"),
    *("[::1].evil.example", "[::1]evil.example:80", "[::1", "::1]", "[localhost]", "[127.0.0.1]", "[::ffff:10.0.0.1]"),
    *(
        "localhost:80@evil.example",
        "evil@localhost",
        "localhost:evil",
        "localhost:80:80",
        "localhost:65536",
        "localhost:-1",
    ),
    *(
        "localhost/evil",
        "localhost#evil",
        "localhost?evil",
        "localhost\\evil",
        "localhost,evil",
        "localhost evil",
        "localhost:-1",
    ),
    *("localhost..", ".localhost.", "..localhost", ":80", "[]", "[]:80", "%6cocalhost", "[fe80::1%25lo]", "::1%lo"),
]


@pytest.mark.parametrize("host", OPEN_HOSTS)
async def test_loopback_names_are_served(here: Site, host: str) -> None:
    async with here.client(host=host) as client:
        assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/nowhere"])
async def test_other_names_are_refused(here: Site, host: str, path: str) -> None:
    async with here.client(host=host) as client:
        response = await client.get(path)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "host_not_allowed"
    assert "--allowed-host" in response.json()["error"]["message"]


async def test_allowed_hosts_are_served() -> None:
    config = ServerConfig(port=0, allowed_hosts=("box.lan",))
    with site(config=config) as here:
        async with here.client() as client:
            assert (await client.get("/health", headers={"host": "Box.lan:8080"})).status_code == 200
            assert (await client.get("/health", headers={"host": "x.box.lan"})).status_code == 403


def test_a_public_server_answers_to_addresses_and_its_own_name() -> None:
    async def nothing(*_: object) -> None: ...

    wild = AccessGuard(nothing, ServerConfig(host="0.0.0.0", api_keys=("k",)))
    assert wild.allows_host("192.168.1.5:8080")
    assert not wild.allows_host("evil.example")
    named = AccessGuard(nothing, ServerConfig(host="box.lan", api_keys=("k",)))
    assert named.allows_host("box.lan:1")


async def test_two_host_headers_are_refused(here: Site) -> None:
    async with here.client() as client:
        headers = [("host", "127.0.0.1"), ("host", "evil.example")]
        assert (await client.get("/health", headers=headers)).status_code == 403


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8080", "HTTP://127.0.0.1:8080"])
async def test_the_servers_own_pages_pass(here: Site, origin: str) -> None:
    async with here.client(host="127.0.0.1:8080", origin=origin) as client:
        response = await client.get("/v1/models")
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == origin


async def test_default_ports_are_left_out(here: Site) -> None:
    async with here.client(host="localhost", origin="http://localhost:80") as client:
        assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "http://evil.example",
            "null",
            "http://localhost:3000",
            "http://127.0.0.1",
            "file://",
            "http://[",
            "127.0.0.1",
        ),
        *(
            "https://127.0.0.1:8080",
            "ftp://127.0.0.1:8080",
            "://127.0.0.1:8080",
            "http:127.0.0.1:8080",
            "",
            "127.0.0.1",
        ),
        *("http://127.0.0.1:8080@evil.example", "http://evil@127.0.0.1:8080", "http://127.0.0.1:8080.evil.example"),
        *("http://127.0.0.1:8080/path", "http://127.0.0.1:8080 http://evil.example", "http://127.0.0.1:08080x"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_other_origins_are_refused(here: Site, origin: str, method: str) -> None:
    headers = {"access-control-request-method": "POST"} if method == "OPTIONS" else {}
    async with here.client(host="127.0.0.1:8080", origin=origin) as client:
        response = await client.request(method, "/v1/models", headers=headers)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in response.headers


async def test_a_page_of_another_scheme_on_the_default_port_is_foreign(here: Site) -> None:
    async with here.client(host="localhost", origin="https://localhost") as client:
        assert (await client.get("/v1/models")).status_code == 403


@pytest.mark.parametrize("origins", [("http://127.0.0.1", "http://evil.example"), ("http://127.0.0.1", "null")])
async def test_every_origin_header_counts(here: Site, origins: tuple[str, str]) -> None:
    async with here.client() as client:
        for given in (origins, origins[::-1]):
            headers = [("host", "127.0.0.1"), *(("origin", origin) for origin in given)]
            assert (await client.get("/v1/models", headers=headers)).status_code == 403


async def test_a_malformed_host_is_refused_even_where_all_are_allowed() -> None:
    with site(config=ServerConfig(port=0, allowed_hosts=("*",))) as here:
        async with here.client() as client:
            assert (await client.get("/health", headers={"host": "any.example:80"})).status_code == 200
            assert (await client.get("/health", headers={"host": "a@any.example"})).status_code == 403


async def test_an_allowed_origin_gets_its_preflight_without_a_key() -> None:
    config = ServerConfig(port=0, allowed_origins=("https://ui.example/",), api_keys=("secret",))
    with site(config=config) as here:
        async with here.client(origin="https://ui.example") as client:
            preflight = await client.options(
                "/v1/chat/completions",
                headers={"access-control-request-method": "POST", "access-control-request-headers": "authorization"},
            )
            plain = await client.options("/v1/chat/completions", headers={"authorization": "Bearer secret"})
            refused = await client.get("/v1/models")
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://ui.example"
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert plain.status_code == 405
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://ui.example"
    assert "origin" in refused.headers["vary"].lower()


async def test_every_path_but_health_needs_the_key() -> None:
    with site(config=ServerConfig(port=0, api_keys=("first", "sécond"))) as here:
        async with here.client() as client:
            assert (await client.get("/health")).status_code == 200
            for path in ("/v1/models", "/metrics", "/props", "/nowhere"):
                response = await client.get(path)
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert response.json()["error"]["code"] == "invalid_api_key"
            for right in (b"Bearer first", b"bearer first", "Bearer sécond".encode()):
                response = await client.get("/v1/models", headers={b"authorization": right})
                assert response.status_code == 200
            for given in (
                *("Bearer wrong", "Bearer ", "Bearer", "first", "Basic first", "Bearer first second", ""),
                *("Bearer  first", "Bearer\tfirst", "Bearer first\x0b", "Bearer first\xa0", "Bearer \xa0first"),
            ):
                headers = {b"authorization": given.encode("latin-1")}
                assert (await client.get("/v1/models", headers=headers)).status_code == 401, given


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("A:1", ("a", 1)),
        ("[::1]:8080", ("::1", 8080)),
        ("[::1]", ("::1", None)),
        ("::1", ("::1", None)),
        ("1.2.3.4", ("1.2.3.4", None)),
        ("a.b.:", ("a.b", None)),
        ("", None),
        ("localhost\n", None),
        ("lo\u0660:\u0661", None),
    ],
)
def test_names_in_host_headers(value: str, name: tuple[str, int | None] | None) -> None:
    assert split_host(value) == name


def test_what_is_loopback() -> None:
    assert all(map(is_loopback_name, ["localhost", "127.0.0.1", "127.9.9.9", "::1", "a.localhost", "::ffff:127.0.0.1"]))
    assert not any(
        map(is_loopback_name, ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example", "mylocalhost", ""])
    )
