"""``--warm``: one anchor after the other, clients first, and nothing that is refused ends a server."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anchorline.cli.serve import warm_orders
from anchorline.config import ServerConfig
from anchorline.errors import AnchorlineError, Conflict, EngineFailure, QueueFull
from anchorline.server.app import build_app
from anchorline.server.serve import make_server, open_socket
from anchorline.server.state import ServerState
from anchorline.server.warming import Warming, WarmOrder
from tests.cli.test_warm_file import CHAT, SYSTEM, USER, lines, written
from tests.server.support import Site

pytestmark = pytest.mark.anyio

ORDERS = tuple(WarmOrder(body=name.encode(), tenant="", origin=f"file, line {name}") for name in "123")
MADE = {"id": "anchor_1", "tokens": 9, "prefilled_tokens": 7}


class Maker:
    """Makes anchors, or raises what it was told to first; notes what is left each time."""

    def __init__(self, **raised: list[AnchorlineError]) -> None:
        self._raised = raised
        self.asked: list[tuple[str, int]] = []
        self.warming = Warming(ORDERS, pause=self._pause)
        self.paused: list[float] = []

    async def _pause(self, seconds: float) -> None:
        self.paused.append(seconds)

    async def run(self) -> None:
        await self.warming.run(self._make)

    async def _make(self, order: WarmOrder) -> dict[str, Any]:
        name = order.body.decode()
        self.asked.append((name, self.warming.left))
        await asyncio.sleep(0)
        if self._raised.get(f"at_{name}"):
            raise self._raised[f"at_{name}"].pop(0)
        return MADE


async def test_anchors_are_made_one_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    maker = Maker()
    with caplog.at_level(logging.INFO, "anchorline.warming"):
        await maker.run()
    assert maker.asked == [("1", 3), ("2", 2), ("3", 1)]
    assert maker.warming.left == 0
    assert "file, line 1 is kept as anchor_1: 9 tokens, 7 of them prefilled; 2 left" in caplog.text


async def test_what_is_refused_is_a_warning_and_the_rest_is_made(caplog: pytest.LogCaptureFixture) -> None:
    maker = Maker(at_2=[Conflict("beyond --pin-budget", code="pin_budget_exceeded")])
    await maker.run()
    assert [name for name, _ in maker.asked] == ["1", "2", "3"]
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "--warm: file, line 2 is not kept: beyond --pin-budget"
    ]


async def test_a_full_queue_is_waited_for() -> None:
    maker = Maker(at_1=[QueueFull(waiting=1, limit=1, retry_after_seconds=n) for n in (4, 2)])
    await maker.run()
    assert maker.asked == [("1", 3), ("1", 3), ("1", 3), ("2", 2), ("3", 1)]
    assert maker.paused == [4, 2]


async def test_it_ends_with_the_engine_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    maker = Maker(at_2=[EngineFailure("out of luck")])
    await maker.run()
    assert [name for name, _ in maker.asked] == ["1", "2"]
    assert maker.warming.left == 0
    assert "--warm: 2 anchors are not made: out of luck" in caplog.text


async def test_health_says_how_many_are_left(here: Site) -> None:
    async def health(state: ServerState) -> Any:
        async with replace(here, app=build_app(state)).client() as client:
            return (await client.get("/health")).json()

    assert await health(here.state) == {"status": "ok"}
    assert await health(replace(here.state, warming=Warming(ORDERS))) == {"status": "ok", "warming": 3}


async def test_a_server_ends_what_goes_on_beside_it(here: Site) -> None:
    ended: list[str] = []

    async def beside() -> None:
        server.should_exit = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    server = make_server(here.app, here.state.config, beside=beside)
    with open_socket(here.state.config) as listener:
        await server.serve(sockets=[listener])
    assert ended == ["cancelled"]


@pytest.mark.parametrize(("keys", "tenants"), [((), 1), (("a",), 1), (("a", "b", "a"), 2)])
def test_every_tenant_gets_each_head_once(tmp_path: Path, keys: tuple[str, ...], tenants: int) -> None:
    path = str(written(tmp_path, lines(CHAT, {"messages": [SYSTEM, USER]}, CHAT)))
    orders = warm_orders(ServerConfig(api_keys=keys, warm=(path, path)))
    assert len(orders) == 2 * tenants
    assert len({order.tenant for order in orders}) == tenants


def test_calls_of_a_trace_that_cannot_be_used_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = {"/v1/completions": {"prompt": "x"}, "/v1/chat/completions": CHAT}
    calls = [{"t": 0, "t_end": 1, "path": path, "body": body} for path, body in paths.items()]
    path = str(written(tmp_path, lines(*calls)))
    assert len(warm_orders(ServerConfig(warm=(path,)))) == 1
    assert "1 of 2 calls left out: /v1/completions is no chat call (line 1)" in caplog.text
