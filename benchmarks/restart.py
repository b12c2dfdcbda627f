"""The first turn after a restart: TTFT against that of a turn whose conversation is resident, and against a cold one.

cold       nothing is kept yet: the whole prompt is prefilled
resident   the next turn on the same server
restart    the next turn on a new server over the same --cache-disk, its first call; the server before was killed

Run: python benchmarks/restart.py [--model MODEL] [--anchor-tokens 8500] [--rounds N]
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from anchorline.bench.client import Answer, Client
from anchorline.bench.process import ServerProcess, start_anchorline
from anchorline.bench.warm_turn import Conversation
from anchorline.numbers import IntegerRangeType
from anchorline.refusal import RefusingCommand


@contextmanager
def serving(arguments: list[str]) -> Iterator[tuple[ServerProcess, Client]]:
    """A server that has read its index."""
    with start_anchorline(arguments) as server, Client(server.wait_until_listening()) as client:
        while client.get("/health")["cache_disk"] != "on":
            pass
        yield server, client


def kill(server: ServerProcess, client: Client) -> None:
    """Kill a server once everything is on disk."""
    while (cache := client.get("/cache"))["pending_saves"] or cache["disk"]["pending_writes"]:
        pass
    os.kill(server.pid, signal.SIGKILL)
    server.wait()


def line(kind: str, turns: list[Answer]) -> str:
    """Medians of one kind of turn."""

    def median(part: str) -> float:
        return statistics.median(float(turn.timings[part]) for turn in turns)

    parts = " ".join(f"{part} {median(part):.1f}" for part in ("load_ms", "restore_ms", "prompt_ms", "tokenize_ms"))
    tokens = f"restored {median('cache_n'):.0f}, from disk {median('disk_n'):.0f}, prefilled {median('prompt_n'):.0f}"
    ttft = statistics.median(turn.ttft_ms or 0.0 for turn in turns)
    return f"{kind:10} TTFT {ttft:9.1f} ms, {tokens}; {parts}"


@click.command(cls=RefusingCommand)
@click.option("--model", default="smollm2", show_default=True)
@click.option("--anchor-tokens", type=IntegerRangeType(100), default=8500, show_default=True)
@click.option("--rounds", type=IntegerRangeType(1), default=3, show_default=True, help="Restarts.")
@click.option("--threads", type=IntegerRangeType(0), default=0, show_default=True, help="As for 'anchorline serve'.")
def main(*, model: str, anchor_tokens: int, rounds: int, threads: int) -> None:
    """Kill a server and see what the next turn costs the one after it."""
    context = str(max(anchor_tokens * 5 // 4, anchor_tokens + 4096))
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder:
        limits = ["--ctx", context, "--threads", str(threads), "--log-level", "warning"]
        arguments = [model, *limits, "--no-seal", "--cache-disk", str(Path(folder) / "tier")]
        turns: dict[str, list[Answer]] = {"cold": [], "resident": [], "restart": []}
        with serving(arguments) as (server, client):
            conversation = Conversation(client, anchor_tokens=anchor_tokens, seed=1)
            turns["cold"].append(client.stream_chat(conversation.fresh_turn()))
            for _ in range(rounds):
                turns["resident"].append(client.stream_chat(conversation.fresh_turn()))
            kill(server, client)
        for _ in range(rounds):
            with serving(arguments) as (server, client):
                turns["restart"].append(client.stream_chat(conversation.fresh_turn()))
                kill(server, client)
    for kind, measured in turns.items():
        click.echo(line(kind, measured))
    cold, resident, restart = (
        statistics.median(turn.ttft_ms or 0.0 for turn in measured) for measured in turns.values()
    )
    click.echo(f"restart / resident {restart / resident:.2f}, cold / restart {cold / restart:.1f}")


if __name__ == "__main__":
    main()
