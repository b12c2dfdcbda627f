"""The documentation names every agent that can be run."""

from __future__ import annotations

from pathlib import Path

from known import AGENTS

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()


def test_every_agent_is_in_the_table_with_its_version() -> None:
    for agent in AGENTS.values():
        assert f"| {agent.name} | {agent.version} |" in PAGE
