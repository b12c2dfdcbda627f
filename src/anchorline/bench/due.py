"""When one call of several may be sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """When a call is due: at once, unless told otherwise.

    |<-- earliest_seconds -->|
    start ──── replies of `after` ────|<- gap_seconds ->| due: the later of the two
    """

    after: tuple[int, ...] = ()
    """Places, among those that it is sent with, of the calls that must have been answered."""
    gap_seconds: float = 0.0
    """Since the last of those answers, or since the start."""
    earliest_seconds: float = 0.0
    """Since the start."""
