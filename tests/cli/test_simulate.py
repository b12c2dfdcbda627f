"""``anchorline simulate`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anchorline.bench.trace import CHAT_PATH
from anchorline.cli.main import cli


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two calls, the second of which goes on from the first."""
    first = [
        {"role": "system", "content": "You look after books. " * 20},
        {"role": "user", "content": "Where is Emma?"},
    ]
    second = [*first, {"role": "assistant", "content": "Here."}, {"role": "user", "content": "And Middlemarch?"}]
    lines = [
        {"t": place, "t_end": place, "path": CHAT_PATH, "body": {"messages": messages}}
        for place, messages in enumerate((first, second))
    ]
    path = tmp_path / "books.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["simulate", *map(str, arguments)])


def test_each_policy_has_a_row_for_each_budget(trace: Path) -> None:
    result = simulate(trace, "--policy", "lru", "--cache-ram", "1", "--cache-ram", "1/2", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(row["trace"], row["policy"], row["budget"]) for row in rows] == [
        ("books", "lru", "1"),
        ("books", "lru", "1/2"),
    ]
    assert rows[0]["prefilled_tokens"] == rows[0]["oracle_tokens"]


def test_a_pace_needs_agents_side_by_side(trace: Path) -> None:
    result = simulate(trace, "--pace", "recorded")
    assert result.exit_code == 2
    assert "--pace needs --at-once" in result.stderr
    result = simulate(trace, "--pace", "recorded", "--at-once", "--cache-ram", "1", "--json")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("budget", ["1/0", "3/2", "0/1", "a/b"])
def test_what_is_no_share_is_refused(trace: Path, budget: str) -> None:
    result = simulate(trace, "--cache-ram", budget)
    assert result.exit_code == 2
    assert f"'--cache-ram': {budget} is no share" in result.stderr
