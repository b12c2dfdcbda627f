"""The demo against live servers: it passes with the cache, and says what is missing without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from anchorline.bench.client import Client
from anchorline.bench.demo import SLACK_TOKENS, DemoCall, DemoReport, run_demo, table_of
from anchorline.bench.process import start_anchorline
from anchorline.cli.main import cli
from anchorline.cli.tables import table_width

SERVE = "--threads 1 --ctx 4096 --cache-ram 64m"


def call(**changes: object) -> DemoCall:
    values: dict[str, object] = {
        "name": "a call",
        "prompt_tokens": 1000,
        "restored_tokens": 0,
        "tier": "-",
        "prefilled_tokens": 1000,
        "expected_tokens": 0,
        "ttft_ms": 500.0,
        "prefill_ms": 400.0,
        "restore_ms": 0.0,
    }
    return DemoCall(**{**values, **changes})  # type: ignore[arg-type]


def demo(*arguments: str, model: Path | str = "test:llama") -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["demo", "--model", str(model), *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_every_warm_call_restores_what_it_should(tiny_smollm2_path: Path) -> None:
    code, output, _ = demo("--serve-args", SERVE, "--json", model=tiny_smollm2_path)
    report = json.loads(output)
    assert code == 0
    assert report["ok"] is True
    assert report["failures"] == []
    cold, *warm = report["calls"]
    assert len(warm) == 5
    assert cold["restored_tokens"] == 0
    for row in report["calls"]:
        assert row["restored_tokens"] + row["prefilled_tokens"] == row["prompt_tokens"]
    head_tokens = report["calls"][3]["expected_tokens"]
    assert head_tokens > 800, "the second session shares the system prompt and the tools"
    for row in warm:
        assert row["restored_tokens"] >= row["expected_tokens"] - SLACK_TOKENS


def test_without_a_cache_the_demo_fails_and_says_where() -> None:
    code, output, errors = demo("--serve-args", SERVE + " --no-cache")
    assert code == 1
    assert "the cache fell short" in errors
    for name in ("tool result", "second session", "back to the first"):
        assert f"{name}: restored 0 of" in errors
    assert "missing" in output


def test_a_running_server_can_be_used(tiny_smollm2_path: Path) -> None:
    with start_anchorline([str(tiny_smollm2_path), *SERVE.split()]) as server:
        url = server.wait_until_listening()
        code, output, _ = demo("--url", url)
        assert code == 0
        assert "An agent's calls to smollm2-2-layers" in output
        with Client(url) as client:
            # What is warm from the run before restores more than this run itself can know.
            calls = list(run_demo(client))
    assert all(row.sufficient for row in calls)
    assert calls[0].restored_tokens > 800
    assert calls[0].expected_tokens == 0


def test_a_server_that_cannot_start_fails_the_demo() -> None:
    code, _, errors = demo("--serve-args", "--flash-attn maybe")
    assert code == 1
    assert "'on', 'off', 'auto'" in errors


@pytest.mark.parametrize(
    ("restored_tokens", "sufficient"), [(900, True), (900 - SLACK_TOKENS, True), (899 - SLACK_TOKENS, False)]
)
def test_only_a_few_template_tokens_may_be_missing(restored_tokens: int, sufficient: bool) -> None:
    row = call(expected_tokens=900, restored_tokens=restored_tokens)
    assert row.sufficient is sufficient
    assert bool(DemoReport(model="m", calls=(row,)).failures) is not sufficient


def test_estimates_rest_on_the_largest_prefill() -> None:
    warm = call(prompt_tokens=2000, restored_tokens=1990, prefilled_tokens=10, prefill_ms=100.0)
    report = DemoReport(model="m", calls=(call(), warm))
    assert report.cold_tokens_per_second == pytest.approx(2500)
    assert report.cacheless_seconds(warm) == pytest.approx(0.8)
    unknown = DemoReport(model="m", calls=(call(prefill_ms=0.0),))
    assert unknown.cacheless_seconds(unknown.calls[0]) is None
    assert table_of(unknown).row_count == 1


def test_the_table_fits_80_columns() -> None:
    rows = [call(name="back to the first", tier=tier, ttft_ms=12345.0) for tier in ("resident", "resident+host")]
    assert table_width(table_of(DemoReport(model="m", calls=tuple(rows)))) <= 80
