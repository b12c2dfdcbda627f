"""Whether a waiting call should leave the cells of a conversation that may be back soon. Pure.

An agent's next call comes as soon as its tool has run. To start another's meanwhile, in cells that the first
then lacks, costs a prefill: now, and again whenever the two take turns.

reply |-- idle --|------ wait ------|
      .  .       ^ now    . .  .    ^ until then            .    so long conversations took to come back lately
"""

from __future__ import annotations

from collections import deque

GAPS = 32
"""So many returns are remembered."""
TURNS_AHEAD = 5
"""For so many turns a conversation is taken to go on, each of which would find its cells."""
SLACK = 1.05
"""What is expected back after some time is waited for a little longer."""
WAIT_SECONDS_MAX = 2.0
"""No call waits longer at a time, whatever it saves."""


class Returns:
    """How long conversations took to come back: from a reply to the next call that goes on from it."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=GAPS)

    def note(self, seconds: float) -> None:
        self._gaps.append(seconds)

    def wait_seconds(self, idle_seconds: float, loss_seconds: float) -> float:
        """How much longer to wait for a conversation that has been idle so long; 0 where that does not pay.

        ``loss_seconds`` is what it would have to prefill again. It may also never come back.
        """
        later = sorted(gap for gap in self._gaps if gap > idle_seconds)
        best, most_gained = 0.0, 0.0
        for returned, gap in enumerate(later, 1):
            wait = SLACK * gap - idle_seconds
            if wait > WAIT_SECONDS_MAX:
                break
            gained = returned / (len(later) + 1) * TURNS_AHEAD * loss_seconds - wait
            if gained > most_gained:
                best, most_gained = wait, gained
        return best
