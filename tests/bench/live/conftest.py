"""One server for all replays of a module: their salts keep them apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anchorline.bench.process import start_anchorline
from tests.bench.conftest import SMALL


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with start_anchorline(SMALL) as server:
        yield server.wait_until_listening()
