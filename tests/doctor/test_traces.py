"""What is wrong with the recorded agents, by kind, request and place."""

from __future__ import annotations

from pathlib import Path

import pytest

from anchorline.bench.trace import read_trace
from anchorline.doctor.comparison import Kind
from anchorline.doctor.diagnosis import diagnose
from anchorline.doctor.layout import ToolOrder

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")

FINDINGS: dict[str, set[tuple[Kind, tuple[tuple[int, int], ...]]]] = {
    # A header in front of each system prompt; moved cache_control marks and parallel results are no faults.
    "claude-code": {(Kind.BILLING_HEADER, tuple((request, 0) for request in range(7)))},
    # A call that summarises, and the history that begins with the summary.
    "cline": {(Kind.SIDE_CALL, ((8, 0),)), (Kind.HISTORY_REWRITTEN, ((9, 1),))},
    # Two summaries asked for without the tools; after the second one the messages come in another order.
    "codex": {(Kind.SIDE_CALL, ((9, 0), (11, 0))), (Kind.HISTORY_REWRITTEN, ((12, 1),))},
    # A title, a compaction with its new head (memory, and how full it is), and the task in a sub-agent's prompt.
    "hermes-fanout": {
        (Kind.SIDE_CALL, ((3, 0), (26, 0))),
        (Kind.HISTORY_REWRITTEN, ((27, 5),)),
        (Kind.COUNTER, ((27, 0),)),
        (Kind.SYSTEM_CHANGED, ((17, 0), (27, 0))),
    },
    "hermes-long.delta": {
        (Kind.SIDE_CALL, ((11, 0), (133, 0))),
        (Kind.HISTORY_REWRITTEN, ((134, 3),)),
        (Kind.HISTORY_PRUNED, ((134, 7),)),
        (Kind.COUNTER, ((134, 0),)),
        (Kind.SYSTEM_CHANGED, ((134, 0),)),
    },
    "langgraph": set(),
    "openai-agents-responses": set(),
    "opencode": {(Kind.SIDE_CALL, ((0, 0), (8, 0)))},
    "pi": set(),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_recorded_agents_have_these_faults_and_no_others(name: str) -> None:
    diagnosis = diagnose(read_trace(RECORDED / f"{name}.jsonl"), count_tokens=len, order=ToolOrder.FIRST)
    found = {
        (finding.kind, tuple((each.request, each.place.part) for each in finding.occurrences))
        for finding in diagnosis.findings
    }
    assert found == FINDINGS[name]
    assert diagnosis.unread == ()
