"""Run a real agent against a live server on loopback and show what each of its calls restored.

    python scripts/agents/run.py hermes

Installs the agent at its pinned version into a folder of its own, starts ``anchorline serve`` with
a test model that follows a script, puts a recording proxy in between, and lets the agent do two
turns with a tool round each. Ends with 1 unless every call of the main chat after the first
restored everything that an earlier prompt or reply began with.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from rich.table import Table

from agent import Agent
from anchorline.bench.process import start_anchorline
from anchorline.cli.tables import show_table
from calls import as_rows, calls_of, probes, refusals, reported, verdict
from known import AGENTS
from place import AgentFailed, Place
from recording import Exchange, recording
from rules import MARK, write_rules

SERVE = ("test:llama", "--test-context", "131072", "--ctx", "131072", "--cache-ram", "2g", "--log-format", "json")
COLUMNS = ("chat", "messages", "tools", "prompt", "seen", "restored", "prefilled", "reply kept", "differs at")
LOG_LINES = 10_000
FOLDER = Path(tempfile.gettempdir()) / "anchorline-agents"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", choices=sorted(AGENTS))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where agents are installed")
    parser.add_argument("--record", type=Path, help="write every request and reply to this file, as JSON lines")
    parser.add_argument("--serve-args", default="", help="further options of anchorline serve")
    options = parser.parse_args()
    agent = AGENTS[options.agent]
    root = options.folder / agent.name
    for folder in ("home", "work"):
        shutil.rmtree(root / folder, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    rules = root / "replies.jsonl"
    write_rules(rules, agent.rules())
    arguments = [*SERVE, "--script", str(rules), *options.serve_args.split()]
    with start_anchorline(arguments, kept_lines=LOG_LINES) as server:
        server_url = server.wait_until_listening()
        with recording(server_url) as (url, exchanges):
            place = Place(root, url=url)
            failure = _drive(agent, place)
        server.stop()
        lines = list(server.lines)
    (root / "server.log").write_text("\n".join(lines))
    if options.record is not None:
        _write_record(options.record, exchanges)
    return _show(agent, exchanges, lines, failure)


def _drive(agent: Agent, place: Place) -> str | None:
    """Install the agent and let it do its turns; what went wrong, or None."""
    try:
        agent.drive(place)
    except AgentFailed as error:
        return str(error)
    finally:
        (place.home.parent / "output.txt").write_text("\n\n".join(place.output))
    return None


def _show(agent: Agent, exchanges: list[Exchange], lines: list[str], failure: str | None) -> int:
    calls = calls_of(exchanges, reported(lines), uses_tools=agent.uses_tools, mark=MARK)
    table = Table(*COLUMNS)
    for row in as_rows(calls):
        table.add_row(*row)
    show_table(table)
    for probe in probes(exchanges):
        print(f"asked: {probe}")
    problems = refusals(exchanges)
    if failure is not None:
        problems.append(f"the agent failed: {failure}")
    for problem in problems:
        print(f"problem: {problem}")
    said = verdict(calls)
    print(f"{agent.name} {agent.version}: {said}")
    return 0 if said.startswith("all ") and not problems else 1


def _write_record(path: Path, exchanges: list[Exchange]) -> None:
    with path.open("w") as file:
        for exchange in exchanges:
            entry = {
                "method": exchange.method,
                "path": exchange.path,
                "status": exchange.status,
                "body": exchange.body,
                "answer": exchange.answer.decode(errors="replace"),
            }
            file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    sys.exit(main())
