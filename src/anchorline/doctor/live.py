"""Findings while the traffic goes on, in bounded memory.

requests   … 0 ─────── 127 │ 128 ─────── 255 │ 256 …
first window               │                 │ full: what was found in it goes into the tally
second window              └── taken again ──┴── new ones …
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from anchorline.bench.trace import TraceRequest
from anchorline.doctor.comparison import Kind
from anchorline.doctor.cost import CountTokens
from anchorline.doctor.findings import Finding
from anchorline.doctor.layout import ToolOrder
from anchorline.doctor.lineage import LOOKBACK_REQUESTS
from anchorline.doctor.requests import AgentRequest, Message, Tool, read_request
from anchorline.doctor.traffic import Traffic

WINDOW_REQUESTS = 2 * LOOKBACK_REQUESTS
"""As many requests are held at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """How often a kind of fault was found, and what it cost."""

    kind: Kind
    requests: int
    lost_tokens: int


class LiveDiagnosis:
    """Takes requests as they come. One thread at a time."""

    def __init__(self, *, count_tokens: CountTokens, order: ToolOrder) -> None:
        self._count = count_tokens
        self._order = order
        self._traffic = Traffic(count_tokens=count_tokens, order=order)
        self._messages: dict[Message, Message] = {}
        self._tools: dict[Tool, Tool] = {}
        """What was said in the window, so that what is said again is held once."""
        self._settled = 0
        """All requests with a smaller number are in the tally."""
        self._times: Counter[Kind] = Counter()
        self._lost_tokens: Counter[Kind] = Counter()
        self.requests = 0

    def take(self, recorded: TraceRequest) -> tuple[Finding, ...]:
        """What breaks the prefix of the next request; which calls are side calls only the totals can tell.

        Raises RequestError for a call that cannot be read, which is not counted.
        """
        request = read_request(recorded, self.requests)
        if len(self._traffic) == WINDOW_REQUESTS:
            self._begin_anew()
        self.requests += 1
        return self._traffic.take(self._shared(request))

    def totals(self) -> tuple[Total, ...]:
        """All that was found so far, the most expensive first."""
        self._settle()
        found = (
            Total(kind=kind, requests=times, lost_tokens=self._lost_tokens[kind]) for kind, times in self._times.items()
        )
        return tuple(sorted(found, key=lambda total: -total.lost_tokens))

    def _begin_anew(self) -> None:
        """Forget the older half of the window."""
        self._settle()
        kept = self._traffic.requests[-LOOKBACK_REQUESTS:]
        self._traffic = Traffic(count_tokens=self._count, order=self._order)
        self._messages.clear()
        self._tools.clear()
        for earlier in kept:
            self._traffic.take(self._shared(earlier))

    def _shared(self, request: AgentRequest) -> AgentRequest:
        """``request`` made of the messages and tools that are held already."""
        return replace(
            request,
            tools=tuple(self._tools.setdefault(tool, tool) for tool in request.tools),
            messages=tuple(self._messages.setdefault(message, message) for message in request.messages),
        )

    def _settle(self) -> None:
        """Put what was found in the window into the tally, each request once."""
        for finding in self._traffic.findings():
            for occurrence in finding.occurrences:
                if occurrence.request >= self._settled:
                    self._times[finding.kind] += 1
                    self._lost_tokens[finding.kind] += occurrence.lost_tokens
        self._settled = self.requests
