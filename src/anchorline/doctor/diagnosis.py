"""From the requests of a trace to all that is found in it."""

from __future__ import annotations

from dataclasses import dataclass

from anchorline.bench.trace import Trace
from anchorline.doctor.cost import CountTokens, pieces
from anchorline.doctor.findings import Finding
from anchorline.doctor.layout import ToolOrder
from anchorline.doctor.requests import read_request
from anchorline.doctor.savings import Saving, savings
from anchorline.doctor.traffic import Traffic
from anchorline.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A request that was left out, and why."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found in one trace, the most expensive first."""

    trace: str
    requests: int
    prompt_tokens: int
    """Tokens of all tools and messages, without what a template writes around them."""
    findings: tuple[Finding, ...]
    savings: tuple[Saving, ...]
    unread: tuple[Unread, ...]


def diagnose(trace: Trace, *, count_tokens: CountTokens, order: ToolOrder) -> Diagnosis:
    """Find what breaks prefixes in ``trace``, for a template that writes the tools where ``order`` says."""
    traffic = Traffic(count_tokens=count_tokens, order=order)
    unread: list[Unread] = []
    for index, recorded in enumerate(trace.requests):
        try:
            traffic.take(read_request(recorded, index))
        except RequestError as error:
            unread.append(Unread(request=index, reason=str(error)))
    requests = traffic.requests
    return Diagnosis(
        trace=trace.name,
        requests=len(requests),
        prompt_tokens=sum(count_tokens(piece.text) for request in requests for piece in pieces(request)),
        findings=traffic.findings(),
        savings=savings(requests, count_tokens=count_tokens, order=order),
        unread=tuple(unread),
    )
