"""From the requests of a trace to findings: every pair compared, what it cost, and what is the same again and again.

Each piece that both requests of a pair hold, and that no earlier prompt led up to, is charged to the nearest
break in front of it. So the findings of a trace add up to what was prefilled again, and mending the first of
two breaks wins what lies between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anchorline.bench.trace import Trace
from anchorline.doctor.comparison import TOOLS, At, Break, Comparison, Held, Kind, Place, excerpt
from anchorline.doctor.layout import Layout, Position, ToolOrder, agreement, last_question, lay_out
from anchorline.doctor.lineage import LOOKBACK_REQUESTS, Kin, lineage
from anchorline.doctor.pairs import compare
from anchorline.doctor.requests import AgentRequest, read_request
from anchorline.errors import RequestError

CountTokens = Callable[[str], int]
"""Tokens of a text; it is asked for the same texts many times."""

Site = tuple[Kind, str]
"""What makes occurrences the same fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A fault in one request. Requests are numbered as in the trace, from 0."""

    request: int
    earlier: int | None
    """The request that it goes on from; None where it goes on from none."""
    place: Place
    before: str
    after: str
    lost_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault with all its occurrences, in order; there is at least one."""

    kind: Kind
    occurrences: tuple[Occurrence, ...]

    @property
    def lost_tokens(self) -> int:
        return sum(occurrence.lost_tokens for occurrence in self.occurrences)


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
    unread: tuple[Unread, ...]


def diagnose(trace: Trace, *, count_tokens: CountTokens, order: ToolOrder) -> Diagnosis:
    """Find what breaks prefixes in ``trace``, for a template that writes the tools where ``order`` says."""
    requests: list[AgentRequest] = []
    unread: list[Unread] = []
    for index, recorded in enumerate(trace.requests):
        try:
            requests.append(read_request(recorded, index))
        except RequestError as error:
            unread.append(Unread(request=index, reason=str(error)))
    traffic = _Traffic(tuple(requests), count_tokens, order)
    return Diagnosis(
        trace=trace.name,
        requests=len(requests),
        prompt_tokens=sum(traffic.tokens(request) for request in requests),
        findings=traffic.findings(),
        unread=tuple(unread),
    )


class _Traffic:
    """The requests of one trace, and how they are weighed."""

    def __init__(self, requests: tuple[AgentRequest, ...], count_tokens: CountTokens, order: ToolOrder) -> None:
        self._requests = requests
        self._count = count_tokens
        self._order = order
        self._layouts = lay_out(requests, order)
        self._kin = lineage(requests)
        self._comparisons = [self._compare(request, kin) for request, kin in zip(requests, self._kin, strict=True)]

    def tokens(self, request: AgentRequest) -> int:
        texts = [*(tool.text for tool in request.tools), *(message.text for message in request.messages)]
        return sum(map(self._count, texts))

    def findings(self) -> tuple[Finding, ...]:
        side_kinds = self._side_kinds()
        found: dict[Site, list[Occurrence]] = {}
        for place, request in enumerate(self._requests):
            if request.billing_header is not None:
                found.setdefault((Kind.BILLING_HEADER, ""), []).append(_header(request))
            if self._kin[place].kind in side_kinds:
                found.setdefault((Kind.SIDE_CALL, ""), []).append(self._side_call(place))
                continue
            for site, occurrence in self._faults(place):
                found.setdefault(site, []).append(occurrence)
        findings = [Finding(kind=kind, occurrences=tuple(each)) for (kind, _), each in found.items()]
        return tuple(sorted(findings, key=lambda finding: -finding.lost_tokens))

    def _compare(self, request: AgentRequest, kin: Kin) -> Comparison | None:
        return None if kin.parent is None else compare(self._requests[kin.parent], request)

    def _side_kinds(self) -> frozenset[int]:
        """Kinds of which no request was gone on from, where there are others."""
        parents = zip(self._kin, self._comparisons, strict=True)
        gone_on = {kin.parent for kin, comparison in parents if comparison is not None and comparison.complete}
        main = {kin.kind for place, kin in enumerate(self._kin) if place in gone_on}
        return frozenset(kin.kind for kin in self._kin if main and kin.kind not in main)

    def _side_call(self, place: int) -> Occurrence:
        """What the call had to prefill for having a head of its own."""
        request = self._requests[place]
        restored, layout = self._restored(place), self._layouts[place]
        pieces = [Held(At(TOOLS, index), tool.text) for index, tool in enumerate(request.tools)]
        pieces += [Held(At(number), message.text) for number, message in enumerate(request.messages)]
        first = request.messages[0]
        return Occurrence(
            request=request.index,
            earlier=None,
            place=Place(part=0, role=first.role),
            before="",
            after=excerpt(first.content),
            lost_tokens=sum(self._behind(piece, restored, layout) for piece in pieces),
        )

    def _faults(self, place: int) -> list[tuple[Site, Occurrence]]:
        """The breaks of a request behind which something was lost; those of one site are one occurrence."""
        comparison, parent = self._comparisons[place], self._kin[place].parent
        if comparison is None or parent is None:
            return []
        old, new = self._requests[parent], self._requests[place]
        breaks = [*comparison.breaks, *self._template_break(old, new)]
        charged = self._charged(place, breaks, comparison.held)
        while charged and not charged[-1][1]:
            charged.pop()
        sites: dict[Site, list[tuple[Break, int]]] = {}
        for each, lost_tokens in charged:
            sites.setdefault(_site(each, self._kin[place].kind), []).append((each, lost_tokens))
        return [(site, _occurrence(breaks, old, new)) for site, breaks in sites.items()]

    def _charged(self, place: int, breaks: Sequence[Break], held: Sequence[Held]) -> list[tuple[Break, int]]:
        """The breaks in the order of the prompt, each with the tokens that are charged to it."""
        layout, restored = self._layouts[place], self._restored(place)
        breaks = sorted(breaks, key=lambda each: layout.position(each.at))
        positions = [layout.position(each.at) for each in breaks]
        lost_tokens = [0] * len(breaks)
        for piece in held:
            nearest = bisect_right(positions, layout.position(piece.at)) - 1
            if nearest >= 0:
                lost_tokens[nearest] += self._behind(piece, restored, layout)
        return list(zip(breaks, lost_tokens, strict=True))

    def _template_break(self, old: AgentRequest, new: AgentRequest) -> list[Break]:
        """Where a template that writes the tools behind the history had them before."""
        stood = last_question(old)
        if self._order is not ToolOrder.BEFORE_LAST_QUESTION or not old.tools or last_question(new) <= stood:
            return []
        place = Place(part=stood, role=new.messages[stood].role)
        kind = Kind.TOOLS_BEHIND_HISTORY
        return [Break(kind=kind, at=At(stood), place=place, before="tools", after=excerpt(new.messages[stood].text))]

    def _restored(self, place: int) -> Position:
        """How far the prompt agrees with any before it."""
        return agreement(self._layouts[max(0, place - LOOKBACK_REQUESTS) : place], self._layouts[place])

    def _behind(self, piece: Held, restored: Position, layout: Layout) -> int:
        """Tokens of a piece that lie behind ``restored``."""
        position = layout.position(piece.at)
        if position >= restored:
            return self._count(piece.text)
        if position.rank == restored.rank and piece.at.part != TOOLS:
            return self._count(piece.text[restored.offset - position.offset :])
        return 0


def _header(request: AgentRequest) -> Occurrence:
    return Occurrence(
        request=request.index,
        earlier=None,
        place=Place(part=0, role="system", line=1),
        before="",
        after=excerpt(request.billing_header or ""),
        lost_tokens=0,
    )


def _occurrence(charged: Sequence[tuple[Break, int]], old: AgentRequest, new: AgentRequest) -> Occurrence:
    """Breaks of one site as one fault, shown by the first of them."""
    first = charged[0][0]
    return Occurrence(
        request=new.index,
        earlier=old.index,
        place=first.place,
        before=first.before,
        after=first.after,
        lost_tokens=sum(lost_tokens for _, lost_tokens in charged),
    )


def _site(each: Break, kind: int) -> Site:
    """The place in the heads of one kind of call, or the kind of break alone for what is done to histories."""
    if each.place.role == "tools":
        return each.kind, f"{kind} {each.place.field}"
    if each.kind in (Kind.CLOCK, Kind.COUNTER, Kind.CHANGING_ID):
        return each.kind, f"{kind} {each.place.part} {each.shape}"
    return each.kind, str(kind) if each.kind is Kind.SYSTEM_CHANGED else ""
