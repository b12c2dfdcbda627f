"""Log lines: pairs that a client cannot break."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from anchorline.api.errors import ApiError
from anchorline.api.explanation import Spelling, explain
from anchorline.cache.difference import Difference
from anchorline.cache.prompt import Prompt
from anchorline.engine.request import MissReason
from anchorline.server.log import call_line, error_line
from tests.api.test_replies import REPORT
from tests.server.standin import ByteTokenizer

PROMPT = Prompt(
    tokens=np.arange(97, 127, dtype=np.int32),
    message_starts=(0, 4, 20),
    message_roles=("system", "user", "tool"),
)


def line_of(**changes: Any) -> str:
    """The line of a call as REPORT has it, but for ``changes``."""
    report = dataclasses.replace(REPORT, **{"disk_tokens": 0, "load_seconds": 0.0, **changes})
    return call_line(report, explain(report, PROMPT, Spelling(ByteTokenizer()), cache=True))


def test_a_call_without_a_miss() -> None:
    assert line_of() == (
        "id=x plan=fork prompt=30 restored=15 prefilled=15 generated=4 tier=resident+host class=cold "
        'queue_ms=500.0 restore_ms=125.0 prefill_ms=3000.0 ttft_ms=4000.0 seen=15 adds="message 1 (user), byte 11"'
    )


def test_a_call_that_waited_for_another_says_how_long() -> None:
    assert line_of(sharing_seconds=0.25).endswith(" sharing_ms=250.0")


def test_a_call_that_waited_for_its_model_says_how_long() -> None:
    assert line_of(switch_seconds=40.25).endswith(" switch_ms=40250.0")


def test_a_call_that_waited_for_the_disk_says_how_long() -> None:
    line = line_of(disk_tokens=2, load_seconds=0.25)
    assert "tier=resident+host+disk" in line
    assert line.endswith(" load_ms=250.0")


def test_a_call_that_restored_nothing_and_made_nothing() -> None:
    cold = line_of(resident_tokens=0, host_tokens=0, seen_tokens=0, ttft_seconds=None)
    for pair in ("restored=0", "tier=none", "ttft_ms=none", "differs=none"):
        assert pair in cold


def test_a_miss_says_why_and_where() -> None:
    difference = Difference(position=23, lost_tokens=3, instead=(int(PROMPT.tokens[23]), 5))
    missed = line_of(miss=MissReason.UNSAVED, seen_tokens=23, difference=difference)
    assert missed.endswith('seen=23 differs="message 2 (tool), byte 4" lost=3 miss=unsaved')


def test_a_client_cannot_forge_lines_or_pairs() -> None:
    error = ApiError(status=404, message='x" status=200\nid=forged \x1b[31m', code=None)
    line = error_line(error, method="GET", path="/a b\r\nid=forged", request_id=None)
    assert "\n" not in line
    assert "\x1b" not in line
    assert line.startswith('id=none method=GET path="/a b\\r\\nid=forged" status=404 code=none field=none ')
    assert line.endswith('error="x\\" status=200\\nid=forged \\x1b[31m"')
