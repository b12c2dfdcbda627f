"""How a replay that found something wrong ends."""

from __future__ import annotations

from collections.abc import Sequence

from anchorline.errors import AnchorlineError


class ReplayFailed(AnchorlineError):
    """The replay prefilled too much, gave other answers than without a cache, was refused, or did not add up."""


def fail_on(problems: Sequence[str]) -> None:
    """Raise ReplayFailed with ``problems`` if there are any."""
    if problems:
        raise ReplayFailed("; ".join(problems))
