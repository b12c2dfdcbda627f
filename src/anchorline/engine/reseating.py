"""Exact mode on stateful models: cells lie as a restore lays them, also in a run that restores nothing.

A state exported and imported again may lie in another order than the one it was computed in (the
ring of a sliding window, a convolution's tail), which shows in the last bits. So the sequence is
exported, dropped and imported at every position from which a later run may resume.
"""

from __future__ import annotations

from anchorline.engine.live import LiveSequence
from anchorline.errors import BackendFailure
from anchorline.llama.interface import Runtime


def reseat(runtime: Runtime, live: LiveSequence) -> None:
    """Export, drop and import ``live`` at its tip. Raises BackendFailure when it does not come back whole."""
    rows = runtime.export_rows(live.id, 0, live.length, fresh)
    state = runtime.export_state(live.id, fresh)
    assert rows is not None
    assert state is not None
    runtime.remove(live.id, 0)
    whole = runtime.import_rows(live.id, rows, 0, live.length) and runtime.import_state(live.id, state, live.length)
    if not whole:
        raise BackendFailure(f"sequence {live.id} could not be seated again at {live.length}")


def fresh(size_bytes: int) -> memoryview:
    """An allocator outside the cache's budget, for what is gone at once."""
    return memoryview(bytearray(size_bytes))
