"""Log lines: pairs that a client cannot break."""

from __future__ import annotations

import dataclasses

from anchorline.api.errors import ApiError
from anchorline.engine.request import MissReason
from anchorline.server.log import call_line, error_line
from tests.api.test_replies import REPORT


def test_a_call_without_a_miss() -> None:
    assert call_line(REPORT) == (
        "id=x plan=fork prompt=30 restored=15 prefilled=15 generated=4 tier=resident+host class=cold "
        "queue_ms=500.0 restore_ms=125.0 prefill_ms=3000.0 ttft_ms=4000.0 seen=15 differs=none"
    )


def test_a_call_that_waited_for_another_says_how_long() -> None:
    assert call_line(dataclasses.replace(REPORT, sharing_seconds=0.25)).endswith("differs=none sharing_ms=250.0")


def test_a_call_that_restored_nothing_and_made_nothing() -> None:
    cold = dataclasses.replace(REPORT, resident_tokens=0, host_tokens=0, ttft_seconds=None)
    assert "restored=0" in call_line(cold)
    assert "tier=none" in call_line(cold)
    assert "ttft_ms=none" in call_line(cold)


def test_a_miss_says_why_and_where() -> None:
    missed = dataclasses.replace(REPORT, miss=MissReason.UNSAVED, seen_tokens=28, first_difference=(2, 5))
    assert call_line(missed).endswith('seen=28 differs="message 2, token 5" miss=unsaved')


def test_a_client_cannot_forge_lines_or_pairs() -> None:
    error = ApiError(status=404, message='x" status=200\nid=forged \x1b[31m', code=None)
    line = error_line(error, method="GET", path="/a b\r\nid=forged", request_id=None)
    assert "\n" not in line
    assert "\x1b" not in line
    assert line.startswith('id=none method=GET path="/a b\\r\\nid=forged" status=404 code=none field=none ')
    assert line.endswith('error="x\\" status=200\\nid=forged \\x1b[31m"')
