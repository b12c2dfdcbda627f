"""Requests taken one by one: each compared with the one that it goes on from, and what it cost.

Each piece that both requests of a pair hold, and that no earlier prompt led up to, is charged to the nearest
break in front of it. So the findings of a trace add up to what was prefilled again, and mending the first of
two breaks wins what lies between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from anchorline.doctor.comparison import At, Break, Comparison, Held, Kind, Place, excerpt
from anchorline.doctor.cost import CountTokens, prefilled_tokens, restored, tokens_behind
from anchorline.doctor.findings import Finding, Occurrence
from anchorline.doctor.layout import Layout, Layouts, ToolOrder, last_question
from anchorline.doctor.lineage import Kin, Lineage
from anchorline.doctor.pairs import compare
from anchorline.doctor.requests import AgentRequest

Site = tuple[Kind, str]
"""What makes occurrences the same fault."""

Found = list[tuple[Site, Occurrence]]


class Traffic:
    """The requests of one trace for a template that writes the tools where ``order`` says, and how they are weighed."""

    def __init__(self, *, count_tokens: CountTokens, order: ToolOrder) -> None:
        self._count = count_tokens
        self._order = order
        self._lineage = Lineage()
        self._layouter = Layouts(order)
        self._layouts: list[Layout] = []
        self._kin: list[Kin] = []
        self._comparisons: list[Comparison | None] = []
        self._faults: list[Found] = []

    def __len__(self) -> int:
        return len(self._layouts)

    @property
    def requests(self) -> tuple[AgentRequest, ...]:
        return tuple(layout.request for layout in self._layouts)

    def take(self, request: AgentRequest) -> tuple[Finding, ...]:
        """The next request, and what breaks its prefix. Whether it is a side call is not known yet."""
        kin = self._lineage.add(request)
        parent = None if kin.parent is None else self._layouts[kin.parent].request
        self._kin.append(kin)
        self._layouts.append(self._layouter.of(request))
        self._comparisons.append(None if parent is None else compare(parent, request))
        self._faults.append([] if parent is None else self._faults_of(parent, request))
        found = [*_header(request), *self._faults[-1]]
        return tuple(Finding(kind=kind, occurrences=(occurrence,)) for (kind, _), occurrence in found)

    def findings(self) -> tuple[Finding, ...]:
        """All of them, the most expensive first."""
        side_kinds = self._side_kinds()
        found: dict[Site, list[Occurrence]] = {}
        for place, layout in enumerate(self._layouts):
            for site, occurrence in _header(layout.request):
                found.setdefault(site, []).append(occurrence)
            if self._kin[place].kind in side_kinds:
                found.setdefault((Kind.SIDE_CALL, ""), []).append(self._side_call(place))
                continue
            for site, occurrence in self._faults[place]:
                found.setdefault(site, []).append(occurrence)
        findings = [Finding(kind=kind, occurrences=tuple(each)) for (kind, _), each in found.items()]
        return tuple(sorted(findings, key=lambda finding: -finding.lost_tokens))

    def _side_kinds(self) -> frozenset[int]:
        """Kinds of which no request was gone on from, where there are others."""
        parents = zip(self._kin, self._comparisons, strict=True)
        gone_on = {kin.parent for kin, comparison in parents if comparison is not None and comparison.complete}
        main = {kin.kind for place, kin in enumerate(self._kin) if place in gone_on}
        return frozenset(kin.kind for kin in self._kin if main and kin.kind not in main)

    def _side_call(self, place: int) -> Occurrence:
        """What the call had to prefill for having a head of its own."""
        request = self._layouts[place].request
        first = request.messages[0]
        return Occurrence(
            request=request.index,
            earlier=None,
            place=Place(part=0, role=first.role),
            before="",
            after=excerpt(first.content),
            lost_tokens=prefilled_tokens(self._layouts, place, self._count),
        )

    def _faults_of(self, old: AgentRequest, new: AgentRequest) -> Found:
        """The breaks of the newest request behind which something was lost; those of one site are one occurrence."""
        comparison, kind = self._comparisons[-1], self._kin[-1].kind
        assert comparison is not None, "a request with a parent was compared"
        breaks = [*comparison.breaks, *self._template_break(old, new)]
        charged = self._charged(breaks, comparison.held)
        while charged and not charged[-1][1]:
            charged.pop()
        sites: dict[Site, list[tuple[Break, int]]] = {}
        for each, lost_tokens in charged:
            sites.setdefault(_site(each, kind), []).append((each, lost_tokens))
        return [(site, _occurrence(breaks, old, new)) for site, breaks in sites.items()]

    def _charged(self, breaks: Sequence[Break], held: Sequence[Held]) -> list[tuple[Break, int]]:
        """The breaks in the order of the newest prompt, each with the tokens that are charged to it."""
        layout, kept = self._layouts[-1], restored(self._layouts, len(self._layouts) - 1)
        breaks = sorted(breaks, key=lambda each: layout.position(each.at))
        positions = [layout.position(each.at) for each in breaks]
        lost_tokens = [0] * len(breaks)
        for piece in held:
            nearest = bisect_right(positions, layout.position(piece.at)) - 1
            if nearest >= 0:
                lost_tokens[nearest] += tokens_behind(piece, kept, layout, self._count)
        return list(zip(breaks, lost_tokens, strict=True))

    def _template_break(self, old: AgentRequest, new: AgentRequest) -> list[Break]:
        """Where a template that writes the tools behind the history had them before."""
        stood = last_question(old)
        if self._order is not ToolOrder.BEFORE_LAST_QUESTION or not old.tools or last_question(new) <= stood:
            return []
        place = Place(part=stood, role=new.messages[stood].role)
        kind = Kind.TOOLS_BEHIND_HISTORY
        return [Break(kind=kind, at=At(stood), place=place, before="tools", after=excerpt(new.messages[stood].text))]


def _header(request: AgentRequest) -> Found:
    """A billing header, which is dropped."""
    if request.billing_header is None:
        return []
    place, after = Place(part=0, role="system", line=1), excerpt(request.billing_header)
    occurrence = Occurrence(request=request.index, earlier=None, place=place, before="", after=after, lost_tokens=0)
    return [((Kind.BILLING_HEADER, ""), occurrence)]


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
