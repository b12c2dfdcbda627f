"""Samples for tests."""

from __future__ import annotations

from dataclasses import replace

from anchorline.bench.standing.measures import Sample
from anchorline.bench.standing.workloads import Role

COLD = Sample(
    workload="tool-session",
    round=0,
    step=0,
    place=0,
    call="question",
    role=Role.COLD,
    server="anchorline",
    prompt_tokens=1000,
    prefilled_tokens=1000,
    oracle_tokens=1000,
    cut_oracle_tokens=1000,
    ttft_ms=500.0,
    prefill_ms=490.0,
    tier="-",
)
WARM = replace(
    COLD,
    step=1,
    place=1,
    call="tool result",
    role=Role.WARM,
    prompt_tokens=1070,
    prefilled_tokens=70,
    oracle_tokens=70,
    cut_oracle_tokens=80,
    ttft_ms=20.0,
    prefill_ms=16.0,
    tier="resident",
)
CONTROL = replace(
    COLD, step=2, place=2, call="a tool changed", role=Role.CONTROL, prefilled_tokens=850, oracle_tokens=850
)
