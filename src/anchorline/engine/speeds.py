"""Measured speeds, smoothed; what the planner knows of time."""

from __future__ import annotations

import math

from anchorline.cache.plan import Speeds

SMOOTHING = 0.2
"""Weight of the newest measurement."""
PREFILL_TOKENS_MIN = 32
"""Shorter decode calls say nothing about prefill."""
LARGE_RESTORE_BYTES = 1 << 20
LOAD_TOKENS_MIN = 256
"""Shorter decode calls take longer for each token, whatever the load is."""
LOAD_SPREAD_CELLS = 256
"""Loads that differ by less say nothing: llama.cpp rounds up to as many cells."""


class SpeedMeter:
    """Keeps running means of what prefill and restore cost on this machine, and of how long replies are."""

    def __init__(self) -> None:
        self._defaults = Speeds()
        self._prefill: float | None = None
        self._load = Slope()
        self._byte: float | None = None
        self._segment: float | None = None
        self._reply: float | None = None

    def prefilled(self, tokens: int, seconds: float, *, cells: int | None) -> None:
        """A decode call of at least ``PREFILL_TOKENS_MIN`` took so long.

        Attention ran over about ``cells`` cells; None when nobody counted them, as below ``LOAD_TOKENS_MIN``.
        """
        assert tokens >= PREFILL_TOKENS_MIN
        self._prefill = _smooth(self._prefill, seconds / tokens)
        if cells is not None and tokens >= LOAD_TOKENS_MIN:
            self._load.measure(cells, seconds / tokens, weight=tokens)

    def restored(self, nbytes: int, segments: int, seconds: float) -> None:
        """Large restores tell the cost of a byte, small ones the cost of a segment."""
        if nbytes >= LARGE_RESTORE_BYTES:
            self._byte = _smooth(self._byte, seconds / nbytes)
        elif segments > 0:
            self._segment = _smooth(self._segment, seconds / segments)

    def replied(self, tokens: int) -> None:
        self._reply = _smooth(self._reply, tokens)

    @property
    def reply_tokens(self) -> float:
        """How long a reply is expected to be; 0 before there was one."""
        return self._reply or 0.0

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
            prefill_seconds_per_token_cell=self._load.least if self._load.spread >= LOAD_SPREAD_CELLS else 0.0,
            restore_seconds_per_byte=self._byte or defaults.restore_seconds_per_byte,
            restore_seconds_per_segment=self._segment or defaults.restore_seconds_per_segment,
        )


class Slope:
    """The line through measured points, by least squares; older points count less and less."""

    MEMORY = 0.98
    """What a point's weight becomes with each newer one: about the last fifty count."""
    POINTS_MIN = 6.0
    ERRORS = 2.0
    """So many standard errors are taken off."""

    def __init__(self) -> None:
        self._points = self._weight = 0.0
        self._x = self._y = 0.0
        """Weighted means, and sums of squares and products around them."""
        self._xx = self._xy = self._yy = 0.0

    def measure(self, x: float, y: float, *, weight: float) -> None:
        """One more point; its variance is taken to be in inverse proportion to ``weight``."""
        self._points = self.MEMORY * self._points + 1
        self._weight = self.MEMORY * self._weight + weight
        share = weight / self._weight
        dx, dy = x - self._x, y - self._y
        self._x += share * dx
        self._y += share * dy
        news = weight * (1 - share)
        self._xx = self.MEMORY * self._xx + news * dx * dx
        self._xy = self.MEMORY * self._xy + news * dx * dy
        self._yy = self.MEMORY * self._yy + news * dy * dy

    @property
    def spread(self) -> float:
        """The standard deviation of x."""
        return math.sqrt(self._xx / self._weight) if self._weight else 0.0

    @property
    def least(self) -> float:
        """What the slope is at least, as far as the points agree; 0 where it may be none, or too few are known."""
        if self._points < self.POINTS_MIN or self._xx <= 0:
            return 0.0
        slope = self._xy / self._xx
        residue = max(0.0, self._yy - slope * self._xy)
        error = math.sqrt(residue / (self._points - 2) / self._xx)
        return max(0.0, slope - self.ERRORS * error)


def _smooth(mean: float | None, value: float) -> float:
    return value if mean is None else mean + SMOOTHING * (value - mean)
