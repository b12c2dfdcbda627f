"""What a match offers: where a prompt can be resumed, by which imports, and what is to be read from disk. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from anchorline.cache.loading import missing_records
from anchorline.cache.plan import HostChain
from anchorline.cache.rows import Rows
from anchorline.cache.segment import Segment
from anchorline.cache.tree import Match
from anchorline.disk.record import RecordKind


@dataclass(frozen=True, slots=True)
class RestoreSpan:
    """One import: the part [start, end) of ``rows``; ``segment`` is the first it belongs to."""

    segment: Segment
    rows: Rows
    start: int
    end: int

    @property
    def cells_end(self) -> int:
        """Where a sequence would end that held every token in the pool while this is imported."""
        return self.start + self.rows.tokens


def restore_spans(match: Match, start: int, end: int) -> list[RestoreSpan]:
    """The imports that put back [start, end); neighbours that view one export are one import."""
    spans: list[RestoreSpan] = []
    for segment in match.chain:
        low, high = max(segment.start, start), min(segment.end, end)
        if low >= high:
            continue
        assert segment.rows is not None
        if spans and spans[-1].rows is segment.rows:
            spans[-1] = RestoreSpan(spans[-1].segment, segment.rows, spans[-1].start, high)
        else:
            spans.append(RestoreSpan(segment, segment.rows, low, high))
    return spans


def resume_point(match: Match, limit: int, *, stateful: bool) -> int:
    """The last position, at most ``limit``, up to which ``match`` can be restored from the host tier; 0 when nowhere.

    Anywhere in it for plain attention; with a stateful model where a segment with a state ends.
    """
    reach = min(match.restorable, limit)
    if not stateful:
        return reach
    ends = (segment.end for segment in match.chain if segment.state is not None and segment.end <= reach)
    return max(ends, default=0)


def load_points(match: Match, limit: int, *, stateful: bool) -> list[int]:
    """The positions up to which ``match`` can be restored once more of it is read from disk, the last first."""
    host = resume_point(match, limit, stateful=stateful)
    reach = min(match.reachable, limit)
    if not stateful:
        return [reach] if reach > host else []
    points = [segment.end for segment in match.path if segment.has_reachable_state and host < segment.end <= reach]
    return points[::-1]


def segment_at(match: Match, position: int) -> Segment:
    """The segment of ``match`` that ends at ``position``, a resume point of a stateful model."""
    return next(segment for segment in match.path if segment.end == position)


def host_chain(match: Match, limit: int, *, stateful: bool) -> HostChain | None:
    """What the host tier alone offers of the first ``limit`` tokens."""
    return _chain(match, resume_point(match, limit, stateful=stateful), stateful=stateful)


def disk_chain(match: Match, limit: int, *, stateful: bool) -> HostChain | None:
    """What host tier and disk tier offer together, where that is more."""
    points = load_points(match, limit, stateful=stateful)
    return _chain(match, points[0], stateful=stateful) if points else None


def _chain(match: Match, end: int, *, stateful: bool) -> HostChain | None:
    if not end:
        return None
    missing = [stored.record for stored in missing_records(match.path, end, stateful=stateful)]
    spans = restore_spans(match, 0, end)
    imports = [_Import(span.end, span.rows.end, span.rows.tokens, span.rows.nbytes) for span in spans]
    imports += [_Import(r.end, r.end, r.end - r.start, r.payload_bytes) for r in missing if r.kind is RecordKind.ROWS]
    return HostChain(
        match_tokens=end,
        ends=(*(each.end for each in imports[:-1]), imports[-1].rows_end),
        bytes_per_token=sum(each.nbytes for each in imports) / sum(each.tokens for each in imports),
        state_bytes=_state_bytes(segment_at(match, end)) if stateful else 0,
        load_bytes=sum(record.payload_bytes for record in missing),
    )


@dataclass(frozen=True, slots=True)
class _Import:
    """One import to come; its rows, all of which are imported, may reach beyond what is wanted of them."""

    end: int
    rows_end: int
    tokens: int
    nbytes: int


def _state_bytes(segment: Segment) -> int:
    if segment.state is not None:
        return segment.state.nbytes
    return 0 if segment.stored_state is None else segment.stored_state.record.payload_bytes
