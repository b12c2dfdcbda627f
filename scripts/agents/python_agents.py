"""Agents from PyPI: programs, and libraries driven by a few lines in ``drivers``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from agent import CONTEXT_TOKENS, Agent
from place import AgentFailed, Place
from rules import FIRST, SECOND, edit_rules, final_answer_rules, one_task_rules

HERMES = "hermes-agent[acp]==0.19.0"
DRIVERS = Path(__file__).parent / "drivers"


def _hermes_config(place: Place, *, upkeep_every: int) -> None:
    """``upkeep_every``: after how many turns it looks what to keep in its memory and skills."""
    place.write(
        "home/.hermes/config.yaml",
        f"""model:
  default: test:llama
  provider: custom
  base_url: {place.url}/v1
  api_key: none
  context_length: {CONTEXT_TOKENS}
memory:
  nudge_interval: {upkeep_every}
skills:
  creation_nudge_interval: {upkeep_every}
""",
    )


def _hermes(place: Place) -> None:
    place.pip(HERMES)
    _hermes_config(place, upkeep_every=10)
    said = place.run("hermes", "chat", "--yolo", "-Q", "-q", FIRST)
    found = re.search(r"session_id:\s*(\S+)", said)
    if found is None:
        raise AgentFailed(f"hermes named no session; it said:\n{said[-2000:]}")
    place.run("hermes", "chat", "--yolo", "-Q", "--resume", found.group(1), "-q", SECOND)


def _hermes_with_side_calls(place: Place) -> None:
    """In one process, which goes on with titles and memory while the next question is asked."""
    place.pip(HERMES)
    _hermes_config(place, upkeep_every=1)
    place.converse("hermes", "acp", questions=(FIRST, SECOND, FIRST))


def _aider(place: Place) -> None:
    place.pip("aider-chat==0.86.2")
    place.write("work/notes.txt", "nothing yet\n")
    place.run("git", "init", "--quiet")
    local = ("--model", "openai/local", "--weak-model", "openai/local", "--edit-format", "whole")
    quiet = ("--no-pretty", "--no-fancy-input", "--no-check-update", "--no-analytics", "--no-show-model-warnings")
    place.run(
        *("aider", *local, *quiet, "--yes-always", "notes.txt"),
        stdin=f"{FIRST}\n{SECOND}\n",
        OPENAI_API_BASE=f"{place.url}/v1",
        OPENAI_API_KEY="none",
        GIT_AUTHOR_NAME="test",
        GIT_AUTHOR_EMAIL="test@localhost",
        GIT_COMMITTER_NAME="test",
        GIT_COMMITTER_EMAIL="test@localhost",
    )


def _mini_swe_agent(place: Place) -> None:
    place.pip("mini-swe-agent==2.4.6")
    place.run(
        *("mini", "-m", "openai/local", "-t", FIRST, "-y", "--exit-immediately"),
        MSWEA_CONFIGURED="true",
        MSWEA_COST_TRACKING="ignore_errors",
        OPENAI_API_BASE=f"{place.url}/v1",
        OPENAI_API_KEY="none",
    )


def _driven(driver: str, *requirements: str, api: str = "chat") -> Callable[[Place], None]:
    """A library, driven by one of our scripts; ``api`` is the protocol where it speaks several."""

    def drive(place: Place) -> None:
        python = place.pip(*requirements) / "python"
        place.run(python, DRIVERS / f"{driver}.py", FIRST, SECOND, BASE_URL=f"{place.url}/v1", API=api)

    return drive


AGENTS = (
    Agent(name="hermes", version="0.19.0", drive=_hermes),
    Agent(name="hermes-acp", version="0.19.0", drive=_hermes_with_side_calls),
    Agent(
        name="langgraph",
        version="1.2.24",
        drive=_driven("langgraph_agent", "langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.4"),
    ),
    Agent(
        name="smolagents",
        version="1.26.0",
        drive=_driven("smolagents_agent", "smolagents[openai]==1.26.0"),
        rules=final_answer_rules,
    ),
    Agent(
        name="pydantic-ai",
        version="2.68.0",
        drive=_driven("pydantic_ai_agent", "pydantic-ai-slim[openai]==2.68.0"),
    ),
    Agent(name="openai-agents", version="0.24.0", drive=_driven("openai_agents_agent", "openai-agents==0.24.0")),
    Agent(
        name="openai-agents-responses",
        version="0.24.0",
        drive=_driven("openai_agents_agent", "openai-agents==0.24.0", api="responses"),
    ),
    Agent(name="mini-swe-agent", version="2.4.6", drive=_mini_swe_agent, rules=one_task_rules),
    Agent(name="aider", version="0.86.2", drive=_aider, uses_tools=False, rules=edit_rules),
)
