"""A small server for the replays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anchorline.bench.client import Client
from anchorline.bench.process import start_anchorline

SMALL = ("test:llama", "--threads", "1", "--ctx", "4096", "--cache-ram", "64m", "--log-level", "warning")


@pytest.fixture
def client() -> Iterator[Client]:
    with start_anchorline(SMALL) as server, Client(server.wait_until_listening()) as made:
        yield made
