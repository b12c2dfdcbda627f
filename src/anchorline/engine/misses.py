"""Why less of a prompt came back than was seen before. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from anchorline.cache.prompt import Cut
from anchorline.cache.segment import Absence
from anchorline.engine.request import MissReason

_ABSENCE_REASONS = {
    Absence.EVICTED: MissReason.EVICTED,
    Absence.RESTORE_FAILED: MissReason.FAILED,
    Absence.NO_ROOM: MissReason.UNSAVED,
    Absence.OVERSIZE: MissReason.UNSAVED,
    Absence.MEMORY_SHORT: MissReason.UNSAVED,
    Absence.EXPORT_FAILED: MissReason.UNSAVED,
}


def find_miss(
    cuts: Sequence[Cut],
    *,
    restored: int,
    reach: int,
    declined: int,
    failure: MissReason | None,
    unread: MissReason | None,
    absence: Absence | None,
    stateful: bool,
) -> tuple[MissReason | None, str | None]:
    """Why fewer than ``reach`` tokens were restored, and which of the prompt's ``cuts`` lacks its state.

    ``declined`` tokens could have been restored but for the request, which wanted no cache; ``failure`` is that of a
    restore, ``unread`` why what lies on disk was left there, ``absence`` why rows are gone. None when nothing was
    missed.
    """
    if restored >= reach:
        return None, None
    if declined > restored:
        return MissReason.OFF, None
    if failure is not None:
        return failure, None
    if unread is not None:
        return unread, None
    if absence is not None:
        return _ABSENCE_REASONS[absence], None
    if not stateful:
        return MissReason.CHEAPER, None
    missing = [cut for cut in cuts if restored < cut.position <= reach]
    return (MissReason.NO_STATE, missing[-1].label) if missing else (None, None)
