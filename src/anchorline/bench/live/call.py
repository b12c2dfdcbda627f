"""One call to a server: sent, its answer read as it comes, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from anchorline.bench.client import CallFailed, Client
from anchorline.bench.live.counts import TokenCounts
from anchorline.bench.live.protocols import MESSAGES, Reader, WireProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One answered call. Times are milliseconds since it was sent."""

    ttft_ms: float | None
    """Until the first piece of the reply; None when it has no text, reasoning or call."""
    itl_ms: tuple[float, ...]
    """Between two pieces each; a server may put several tokens into one."""
    e2e_ms: float
    counts: TokenCounts
    timings: Mapping[str, Any]
    """Without the API key, which a server may have repeated in them."""
    reply: tuple[int, ...]


def call(
    client: Client,
    path: str,
    body: dict[str, Any],
    protocol: WireProtocol,
    *,
    api_key: str | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Send ``body`` and read the answer to its end. Raises CallFailed for a refusal, Unreachable without an answer."""
    reader: Reader = protocol.reader()
    headers = {**protocol.headers, **({"x-api-key": api_key} if api_key and protocol is MESSAGES else {})}
    with client.guarded():
        started = clock()
        pieces = [(clock() - started) * 1000 for _ in _pieces(reader, client.events(path, body, headers=headers))]
        e2e_ms = (clock() - started) * 1000
        counts = reader.counts()
    if counts is None:
        raise CallFailed(f"{client.url} reported no usage", status=200)
    return Measured(
        ttft_ms=pieces[0] if pieces else None,
        itl_ms=tuple(later - earlier for earlier, later in pairwise(pieces)),
        e2e_ms=e2e_ms,
        counts=counts,
        timings=client.masked(reader.timings),
        reply=tuple(reader.reply),
    )


def _pieces(reader: Reader, events: Iterator[dict[str, Any]]) -> Iterator[None]:
    """One value for each piece of the reply, as it comes."""
    for event in events:
        if reader.take(event):
            yield None
