"""Long conversations in little memory, made small: the same calls and checks at a thirtieth of the size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anchorline.bench.long_sessions import (
    NOT_IN_A_TIER,
    Footprint,
    Load,
    Report,
    Visit,
    faults_of,
    measure_footprint,
    run,
)

HEAD, END, TURNS, FITS = 700, 3200, 2, 2.5


@pytest.mark.parametrize("architecture", ["llama", "qwen35"])
def test_more_conversations_than_fit_keep_their_head_and_miss_only_what_is_not_there(architecture: str) -> None:
    model, context_tokens = f"test:{architecture}", 4096
    row_bytes = measure_footprint(model, context_tokens).row_bytes
    load = Load(
        context_tokens=context_tokens,
        conversations=5,
        head_tokens=HEAD,
        tokens=END,
        turns=TURNS,
        budget_bytes=int((HEAD + FITS * (END - HEAD)) * row_bytes),
    )
    report = run(model, load, arguments=("--threads", "1"), progress=lambda visit: None)
    assert report.faults == []
    assert report.peak_bytes < report.limit_bytes
    misses = {visit.miss for visit in report.visits if visit.turn > 1}
    assert misses & set(NOT_IN_A_TIER), "the budget was to be too small"
    assert max(visit.prompt_tokens for visit in report.visits) > 0.9 * END


GOOD = Visit(
    conversation="B",
    turn=2,
    prompt_tokens=3000,
    restored_tokens=2000,
    seen_tokens=2500,
    miss="evicted",
    tier="host",
    ttft_ms=1.0,
    host_tokens=4000,
    row_bytes=400_000,
    used_bytes=420_000,
)


@pytest.mark.parametrize(
    ("visit", "exit_code", "said"),
    [
        (GOOD, 0, None),
        (replace(GOOD, restored_tokens=699), 0, "699 restored of a head of 700"),
        (replace(GOOD, miss="failed"), 0, "since: failed"),
        (replace(GOOD, used_bytes=500_001), 0, "the budget is 500000"),
        (replace(GOOD, row_bytes=421_000), 0, "421000 bytes of rows for 4000 tokens"),
        (GOOD, -9, "exit code -9"),
    ],
)
def test_each_fault_is_said(visit: Visit, exit_code: int, said: str | None) -> None:
    load = Load(context_tokens=4096, conversations=2, head_tokens=HEAD, tokens=END, turns=TURNS, budget_bytes=500_000)
    report = Report(
        load=load,
        footprint=Footprint(kind="plain", kv_bytes=1, row_bytes=100),
        limit_bytes=1,
        peak_bytes=1,
        head_tokens=HEAD,
        visits=(GOOD, visit),
        exit_code=exit_code,
    )
    faults = faults_of(report)
    assert len(faults) == (said is not None)
    assert all(said is not None and said in fault for fault in faults)
