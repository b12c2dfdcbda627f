"""The page: complete by itself, true to the calls, and harmless whatever they are called."""

from __future__ import annotations

import dataclasses
import re
from datetime import datetime
from html.parser import HTMLParser

import pytest

from anchorline.bench.live.html import html_of
from anchorline.bench.live.perfect import OracleKind
from anchorline.bench.live.plots import (
    BOTTOM,
    HEIGHT,
    MOST_MARKS,
    TOP,
    WIDTH,
    duration,
    prefilled_so_far,
    tokens_per_call,
    ttft_per_call,
)
from anchorline.bench.live.report import LiveReport
from tests.bench.live.calls import answered, refused, report_of

DRAWN = HEIGHT - TOP - BOTTOM
LOADING = {"src", "href", "srcset", "data", "action", "poster"}


def page(*reports: LiveReport) -> str:
    return html_of(reports, command="anchorline replay t.jsonl --url http://h", written=datetime(2026, 1, 2, 3, 4))


class Elements(HTMLParser):
    """Every start tag with its attributes, and whether tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_nothing_is_loaded_and_nothing_runs() -> None:
    elements = Elements(page(report_of(answered(0, 100), answered(1, 120, 100), refused(2))))
    assert elements.open == []
    tags = {tag for tag, _ in elements.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "image"}
    assert not [name for _, attributes in elements.seen for name in attributes if name in LOADING or name[:2] == "on"]
    assert "url(" not in page(report_of(answered(0, 100)))
    assert "@import" not in page(report_of(answered(0, 100)))


def test_names_are_shown_and_not_read_as_markup() -> None:
    text = page(report_of(answered(0, 100), refused(1, "<script>alert(1)</script>"), name="<b>&trace"))
    assert "<script>" not in text
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;trace" in text


def test_the_figures_are_in_the_page() -> None:
    text = page(
        report_of(answered(0, 10000, oracle=10000), answered(1, 12000, 9000, oracle=2000), refused(2, "no room"))
    )
    for figure in ("22,000", "9,000", "13,000", "12,000", "1.0833", "1 refused", "no room", "holds", "token ids"):
        assert figure in text, figure


def test_an_estimate_is_called_one() -> None:
    assert "The oracle is an estimate" in page(report_of(answered(0, 100), oracle=OracleKind.BYTES))
    assert "The oracle is an estimate" not in page(report_of(answered(0, 100)))


def test_what_a_server_does_not_say_is_not_drawn() -> None:
    text = page(report_of(answered(0, 100, None, adds_up=None)))
    assert "not reported" in text
    assert "Prefilled tokens so far" not in text
    assert 'class="unknown"' in text


def test_wrong_sums_are_shown() -> None:
    assert "wrong in 1" in page(report_of(answered(0, 100, adds_up=False)))


def test_a_replay_without_an_answer_has_a_page() -> None:
    assert "no room" in page(report_of(refused(0, "no room")))


def test_bars_are_as_high_as_their_tokens() -> None:
    plot = tokens_per_call([answered(0, 1000, 0, oracle=1000), answered(1, 2000, 1500, oracle=250)])
    heights = {(bar.kind, round(bar.height / DRAWN * 2000)) for bar in plot.bars if bar.kind != "oracle"}
    assert heights == {("restored", 0), ("prefilled", 1000), ("restored", 1500), ("prefilled", 500)}
    # A perfect cache would have restored nothing of the first, and 1,750 of the second.
    marks = [bar.y + bar.height / 2 for bar in plot.bars if bar.kind == "oracle"]
    assert marks == pytest.approx([HEIGHT - BOTTOM, HEIGHT - BOTTOM - DRAWN * 1750 / 2000])


def test_lines_end_at_the_sums() -> None:
    plot = prefilled_so_far([answered(0, 600, 0, oracle=500), answered(1, 900, 500, oracle=300)])
    ends = {line.kind: float(line.points.split(",")[-1]) for line in plot.lines}
    assert ends["prefilled"] == pytest.approx(TOP, abs=0.1)
    assert ends["oracle"] == pytest.approx(HEIGHT - BOTTOM - DRAWN * 0.8, abs=0.1)


def test_a_mark_says_its_call_and_what_anchorline_says_of_it() -> None:
    call = answered(3, 1000, 400, oracle=500, ttft_ms=12.5)
    assert call.measured is not None
    told = dataclasses.replace(call.measured, timings={"plan": "restore", "miss": "evicted", "prompt_n": 600})
    (dot,) = ttft_per_call([dataclasses.replace(call, measured=told)]).dots
    said = "t, call 3 · prompt 1,000 · restored 400 · prefilled 600 · oracle 500 · TTFT 12.5 ms"
    assert dot.title == f"{said} · plan restore · miss evicted"
    assert ttft_per_call([call]).dots[0].title == said


def test_large_counts_have_room_beside_the_plot() -> None:
    plot = prefilled_so_far([answered(0, 2_300_000, 0)])
    assert [tick.label for tick in plot.y_ticks] == ["0", "500,000", "1 M", "1.5 M", "2 M", "2.5 M"]


def test_ttft_is_drawn_by_powers_of_ten() -> None:
    times = [10.0, 100.0, 1000.0]
    plot = ttft_per_call([answered(place, 100, 90 * place, ttft_ms=ms) for place, ms in enumerate(times)])
    assert [tick.label for tick in plot.y_ticks] == ["10 ms", "100 ms", "1 s"]
    assert [dot.y for dot in plot.dots] == pytest.approx([tick.at for tick in plot.y_ticks])
    assert [dot.kind for dot in plot.dots] == ["cold", "warm", "warm"]


def test_many_calls_are_drawn_as_few_marks() -> None:
    calls = [answered(place, 1000, 400, oracle=500) for place in range(5 * MOST_MARKS - 1)]
    bars = tokens_per_call(calls).bars
    assert len(bars) == 3 * MOST_MARKS
    assert max(bar.x + bar.width for bar in bars) <= WIDTH
    points = prefilled_so_far(calls).lines[0].points
    assert len(points.split()) <= 2 * MOST_MARKS + 4


def test_pages_of_long_replays_list_the_first_calls() -> None:
    text = page(report_of(*(answered(place, 10) for place in range(1200))))
    assert "Only the first 1,000 are listed" in text
    assert len(re.findall(r"<tr><td>t \d+</td>", text)) == 1000


@pytest.mark.parametrize(
    ("ms", "text"), [(0.42, "0.42 ms"), (75.25, "75.2 ms"), (999.4, "999 ms"), (1300, "1.30 s"), (61000, "61.0 s")]
)
def test_durations(ms: float, text: str) -> None:
    assert duration(ms) == text
