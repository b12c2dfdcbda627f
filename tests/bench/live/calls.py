"""Measured calls, made up."""

from __future__ import annotations

from typing import Any

from anchorline.bench.live.call import Measured
from anchorline.bench.live.counts import TokenCounts
from anchorline.bench.live.perfect import OracleKind
from anchorline.bench.live.report import LiveCall, LiveReport

SETTINGS: dict[str, Any] = {
    "pace": 1.0,
    "concurrency": 2,
    "overlapping": True,
    "warm_up": 1,
    "salt": "abcd",
    "model": "m",
    "max_tokens": 8,
    "at_cuts": False,
}


def measured(
    prompt: int, cached: int | None = 0, *, ttft_ms: float | None = 100.0, adds_up: bool | None = True
) -> Measured:
    counts = TokenCounts(
        prompt_tokens=prompt,
        cached_tokens=cached,
        prefilled_tokens=None if cached is None else prompt - cached,
        reply_tokens=8,
        adds_up=adds_up,
    )
    return Measured(ttft_ms=ttft_ms, itl_ms=(10.0, 20.0), e2e_ms=200.0, counts=counts, timings={}, reply=())


def answered(index: int, prompt: int, cached: int | None = 0, *, oracle: int = 1, **more: Any) -> LiveCall:
    return LiveCall(
        trace="t",
        index=index,
        path="/v1/chat/completions",
        sent_seconds=float(index),
        late_seconds=0.0,
        measured=measured(prompt, cached, **more),
        oracle_tokens=oracle,
    )


def refused(index: int, error: str = "HTTP 400: no") -> LiveCall:
    return LiveCall(
        trace="t", index=index, path="/v1/messages", sent_seconds=float(index), late_seconds=0.0, error=error
    )


def report_of(*calls: LiveCall, oracle: OracleKind = OracleKind.TOKEN_IDS, name: str = "t") -> LiveReport:
    return LiveReport(
        name=name, url="http://127.0.0.1:1", calls=calls, wall_seconds=3.0, oracle=oracle, settings=SETTINGS
    )
