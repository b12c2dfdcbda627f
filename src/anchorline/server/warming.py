"""Anchors that ``--warm`` asks for, made one after the other while the server already answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anchorline.errors import AnchorlineError, EngineFailure, QueueFull

log = logging.getLogger("anchorline.warming")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmOrder:
    """One anchor to make."""

    body: bytes
    """As ``POST /cache/anchors`` takes it."""
    tenant: str
    """As ``Caller.tenant``."""
    origin: str
    """Where it was asked for."""


MakeAnchor = Callable[[WarmOrder], Awaitable[Mapping[str, Any]]]
"""Prefills and pins; gives the anchor as the HTTP interface shows it."""


class Warming:
    """What is left to be made. All of it happens on one event loop; ``left`` may be read by any thread."""

    def __init__(
        self, orders: Iterable[WarmOrder], *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._waiting = deque(orders)
        self._pause = pause

    @property
    def left(self) -> int:
        """Anchors that are still to be made, the one under way among them."""
        return len(self._waiting)

    async def run(self, make: MakeAnchor) -> None:
        """Make all of them. What is refused is logged and left out, and so is the rest when the engine ends."""
        while self._waiting:
            try:
                await self._make(self._waiting[0], make)
            except EngineFailure as error:
                log.warning("--warm: %d anchors are not made: %s", self.left, error)
                self._waiting.clear()
                return
            self._waiting.popleft()

    async def _make(self, order: WarmOrder, make: MakeAnchor) -> None:
        """Make one; clients' requests that fill a queue come first. Raises EngineFailure."""
        while True:
            try:
                anchor = await make(order)
            except QueueFull as full:
                await self._pause(full.retry_after_seconds)
                continue
            except EngineFailure:
                raise
            except AnchorlineError as error:
                log.warning("--warm: %s is not kept: %s", order.origin, error)
                return
            log.info(
                "--warm: %s is kept as %s: %d tokens, %d of them prefilled; %d left",
                order.origin,
                anchor["id"],
                anchor["tokens"],
                anchor["prefilled_tokens"],
                self.left - 1,
            )
            return
