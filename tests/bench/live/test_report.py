"""Sums, percentiles, and what is not said where a server does not say it."""

from __future__ import annotations

import json

from anchorline.bench.live.report import spread_of
from tests.bench.live.calls import answered, refused, report_of


def test_sums_leave_refused_calls_out() -> None:
    report = report_of(answered(0, 100, oracle=90), refused(1), answered(2, 120, 100, oracle=20))
    assert (len(report.answered), len(report.refused)) == (2, 1)
    assert (report.prompt_tokens, report.cached_tokens, report.prefilled_tokens) == (220, 100, 120)
    assert report.oracle_tokens == 110
    assert report.ratio == 120 / 110


def test_a_sum_is_not_known_when_one_call_does_not_say() -> None:
    report = report_of(answered(0, 100), answered(1, 100, None, adds_up=None))
    assert (report.cached_tokens, report.prefilled_tokens, report.ratio) == (None, None, None)
    assert report.checked == 1


def test_calls_whose_counts_do_not_add_up_are_named() -> None:
    report = report_of(answered(0, 100), answered(1, 100, adds_up=False))
    assert [call.index for call in report.wrong_sums] == [1]


def test_times_of_warm_and_cold_calls_are_told_apart() -> None:
    report = report_of(answered(0, 100, 49, ttft_ms=900.0), answered(1, 100, 50, ttft_ms=10.0), refused(2))
    times = {name: (spread.count, spread.largest) for name, spread in report.named_times()}
    assert times == {
        "TTFT": (2, 900.0),
        "TTFT cold": (1, 900.0),
        "TTFT warm": (1, 10.0),
        "ITL": (4, 20.0),
        "E2E": (2, 200.0),
    }


def test_a_reply_without_a_piece_has_no_ttft() -> None:
    assert report_of(answered(0, 100, ttft_ms=None)).times()["TTFT"] is None


def test_percentiles() -> None:
    spread = spread_of(float(value) for value in range(101))
    assert spread is not None
    assert (spread.count, spread.percentiles, spread.largest) == (101, (50, 90, 95, 99), 100)


def test_the_json_has_every_call() -> None:
    report = report_of(answered(0, 100, 60, oracle=41), refused(1, "HTTP 400: no room"))
    told = json.loads(json.dumps(report.as_json()))
    assert (told["requests"], told["refused"], told["oracle"]) == (2, 1, "token ids")
    assert told["times_ms"]["warm"]["TTFT"]["p50"] == 100.0
    first, second = told["calls"]
    assert (first["prompt_tokens"], first["cached_tokens"], first["prefilled_tokens"]) == (100, 60, 40)
    assert (first["oracle_tokens"], first["itl_ms"], first["error"]) == (41, [10.0, 20.0], None)
    assert second["error"] == "HTTP 400: no room"
