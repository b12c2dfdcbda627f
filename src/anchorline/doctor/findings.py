"""What is found: one fault with the requests that pay for it."""

from __future__ import annotations

from dataclasses import dataclass

from anchorline.doctor.comparison import Kind, Place


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
