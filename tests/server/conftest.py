"""Fixtures of the HTTP tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.support import Site, site


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def here() -> Iterator[Site]:
    """An application over the stand-in engine, called in process."""
    with site() as running:
        yield running
