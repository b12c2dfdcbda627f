"""Measured speeds, smoothed; what the planner knows of time."""

from __future__ import annotations

from anchorline.cache.plan import Speeds

SMOOTHING = 0.2
"""Weight of the newest measurement."""
PREFILL_TOKENS_MIN = 32
"""Shorter decode calls say nothing about prefill."""
LARGE_RESTORE_BYTES = 1 << 20


class SpeedMeter:
    """Keeps running means of what prefill and restore cost on this machine."""

    def __init__(self) -> None:
        self._defaults = Speeds()
        self._prefill: float | None = None
        self._byte: float | None = None
        self._segment: float | None = None

    def prefilled(self, tokens: int, seconds: float) -> None:
        if tokens >= PREFILL_TOKENS_MIN:
            self._prefill = _smooth(self._prefill, seconds / tokens)

    def restored(self, nbytes: int, segments: int, seconds: float) -> None:
        """Large restores tell the cost of a byte, small ones the cost of a segment."""
        if nbytes >= LARGE_RESTORE_BYTES:
            self._byte = _smooth(self._byte, seconds / nbytes)
        elif segments > 0:
            self._segment = _smooth(self._segment, seconds / segments)

    @property
    def token_seconds(self) -> float:
        """What a token's prefill takes here."""
        return self.speeds.prefill_seconds_per_token

    @property
    def speeds(self) -> Speeds:
        """What was measured; the defaults where nothing was."""
        defaults = self._defaults
        return Speeds(
            prefill_seconds_per_token=self._prefill or defaults.prefill_seconds_per_token,
            restore_seconds_per_byte=self._byte or defaults.restore_seconds_per_byte,
            restore_seconds_per_segment=self._segment or defaults.restore_seconds_per_segment,
        )


def _smooth(mean: float | None, value: float) -> float:
    return value if mean is None else mean + SMOOTHING * (value - mean)
