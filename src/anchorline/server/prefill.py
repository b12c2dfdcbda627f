"""Calls without a reply, seen from the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from anchorline.engine.request import CallReport, FinishReason, SampledToken
from anchorline.errors import AnchorlineError


class Prefill:
    """The ``ReplyConsumer`` of a call that only prefills; whoever waits for its end may leave."""

    def __init__(self) -> None:
        self._report: Future[CallReport] = Future()
        self._report.set_running_or_notify_cancel()  # the engine's answer is taken whether or not anybody waits

    async def report(self) -> CallReport:
        """What the call did. Raises what ended it early."""
        return await asyncio.wrap_future(self._report)

    def on_token(self, choice: int, token: SampledToken) -> bool:
        raise AssertionError("nothing is generated")

    def on_finish(self, choice: int, reason: FinishReason) -> None:
        """Nothing is told before the report comes."""

    def on_done(self, report: CallReport) -> None:
        self._report.set_result(report)

    def on_error(self, error: AnchorlineError, report: CallReport | None) -> None:
        self._report.set_exception(error)
