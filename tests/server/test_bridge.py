"""The last event reaches whoever wants to account for a call, also when nobody reads its reply any more."""

from __future__ import annotations

import asyncio

import pytest

from anchorline.errors import Cancelled
from anchorline.output.events import ReplyEvent, ReplyFailed, TextDelta
from anchorline.server.bridge import EventBridge

pytestmark = pytest.mark.anyio
LAST = ReplyFailed(Cancelled("gone"))


@pytest.mark.parametrize("events_before_leaving", [0, 1, 2])
@pytest.mark.parametrize("read", [False, True])
async def test_one_who_left_gets_the_last_event_once(events_before_leaving: int, read: bool) -> None:
    bridge = EventBridge(asyncio.get_running_loop())
    events: list[ReplyEvent] = [TextDelta(0, "text", ()), LAST]
    got: list[ReplyEvent] = []
    for event in events[:events_before_leaving]:
        await asyncio.to_thread(bridge.emit, event)
    if read and events_before_leaving:
        await bridge.take()
    bridge.leave(got.append)
    assert got == events[1:events_before_leaving]
    for event in events[events_before_leaving:]:
        await asyncio.to_thread(bridge.emit, event)
    assert got == [LAST]
