"""What measurements say of speeds, noisy as they are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.plan import Speeds
from anchorline.engine.speeds import LOAD_SPREAD_CELLS, LOAD_TOKENS_MIN, Slope, SpeedMeter


def measured(meter: SpeedMeter) -> float:
    return meter.speeds.prefill_seconds_per_token_cell


def test_without_measurements_cells_cost_nothing() -> None:
    assert SpeedMeter().speeds == Speeds()
    assert measured(SpeedMeter()) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_the_cost_of_a_cell_is_found_in_noise(seed: int) -> None:
    source, meter = random.Random(seed), SpeedMeter()
    for _ in range(100):
        cells, tokens = source.randrange(20_000), source.choice([256, 512, 2048])
        seconds = tokens * (1e-4 + 1e-8 * cells) * source.uniform(0.9, 1.1)
        meter.prefilled(tokens, seconds, cells=cells)
    assert 0.8e-8 < measured(meter) < 1.1e-8


def test_a_machine_that_gets_slower_is_followed() -> None:
    meter = SpeedMeter()
    for slope in (1e-9, 1e-8):
        for step in range(400):
            cells = step * 997 % 20_000
            meter.prefilled(512, 512 * (1e-4 + slope * cells), cells=cells)
    assert 0.8e-8 < measured(meter) < 1.2e-8


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_is_no_slope(seed: int) -> None:
    """Two standard errors are taken off, so little of it is taken for a slope, and seldom."""
    source, meter = random.Random(seed), SpeedMeter()
    for _ in range(100):
        meter.prefilled(512, 512 * 1e-4 * source.uniform(0.8, 1.2), cells=source.randrange(20_000))
    assert measured(meter) * 20_000 < 0.1 * 1e-4


def test_loads_that_hardly_differ_say_nothing() -> None:
    meter = SpeedMeter()
    for cells in range(0, LOAD_SPREAD_CELLS, 16):
        meter.prefilled(512, 512 * (1e-4 + 1e-6 * cells), cells=cells)
    assert measured(meter) == 0.0


def test_short_decode_calls_say_nothing_of_the_load() -> None:
    """They take longer for each token, and come behind long prefixes."""
    meter = SpeedMeter()
    for step in range(40):
        cells = step * 500
        meter.prefilled(LOAD_TOKENS_MIN - 1, 0.1 + cells, cells=cells)
    assert measured(meter) == 0.0


points = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(0, 10), st.floats(1, 1e4)),
    max_size=60,
)


@given(points)
def test_a_slope_is_never_negative(taken: list[tuple[float, float, float]]) -> None:
    slope = Slope()
    for x, y, weight in taken:
        slope.measure(x, y, weight=weight)
        assert slope.least >= 0
        assert slope.spread >= 0


@given(st.floats(-1, 1), st.lists(st.floats(0, 100), min_size=8, max_size=30, unique=True))
def test_of_points_on_a_line_its_slope_is_found_unless_it_falls(rise: float, xs: list[float]) -> None:
    slope = Slope()
    for x in xs:
        slope.measure(x, 50 + rise * x, weight=1.0)
    if slope.spread > 0.1:
        assert slope.least == pytest.approx(max(0.0, rise), abs=1e-6)


def test_replies_are_expected_to_be_as_long_as_lately() -> None:
    meter = SpeedMeter()
    assert meter.reply_tokens == 0
    for _ in range(50):
        meter.replied(200)
    assert meter.reply_tokens == pytest.approx(200)
