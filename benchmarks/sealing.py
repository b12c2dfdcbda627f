"""TTFT behind a tool's result, with turns sealed while the tool runs and without.

Two servers hold the same conversation of tool rounds in turns, round by round and in alternating order. A round is
a call that is answered with a tool call, the tool's time, and the call with its result, whose TTFT (the server's, from
receipt) is measured. The replies are scripted, so only test:ARCH models can be measured; all else is real.

Run: python benchmarks/sealing.py [--model test:llama] [--tools 0,0.5,5] [--rounds 9]
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from anchorline.bench import agent
from anchorline.bench.client import CHAT_PATH, Client
from anchorline.bench.process import start_anchorline
from anchorline.numbers import IntegerRangeType
from anchorline.refusal import RefusingCommand

CONTEXT_TOKENS = 65536
SETTLE_SECONDS = 0.5
"""Behind each round, so that what one server does afterwards takes nothing from the other's."""
SAID = "I read the next file of the project to see what is in it. "
RESULT = "def total(lines):\n    return sum(line.amount for line in lines)\n" * 3


@dataclass(frozen=True, slots=True)
class Measured:
    """One call with a tool's result."""

    ttft_ms: float
    delta_tokens: int


class Side:
    """One server's conversation: equal on both sides but for the ids of the calls."""

    def __init__(self, client: Client, *, tool_seconds: float) -> None:
        self._client = client
        self._tool_seconds = tool_seconds
        self._messages = [agent.user(f"Read every file. Tools take {tool_seconds} s.")]
        self._ask()

    def measure(self) -> Measured:
        """A call, the time of the tool that it is answered with, and the call with that tool's result."""
        self._ask()
        time.sleep(self._tool_seconds)
        measured = self._ask()
        time.sleep(SETTLE_SECONDS)
        return measured

    def _ask(self) -> Measured:
        if len(self._messages) > 1:
            (call,) = self._messages[-1]["tool_calls"]
            self._messages.append(agent.tool_result(call["id"], f"{len(self._messages)}: {RESULT}"))
        answer = self._client.post(CHAT_PATH, agent.chat_body(self._messages, max_tokens=2000))
        self._messages.append(answer["choices"][0]["message"])
        timings = answer["timings"]
        return Measured(float(timings["ttft_ms"]), int(timings["prompt_n"]))


def measure(sealing: Client, plain: Client, *, tool_seconds: float, rounds: int) -> list[tuple[Measured, Measured]]:
    """(sealed, not sealed), round by round; the first round, which warms both, is left out."""
    sides = [Side(client, tool_seconds=tool_seconds) for client in (sealing, plain)]
    pairs = []
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        taken = {side: sides[side].measure() for side in order}
        pairs.append((taken[0], taken[1]))
    return pairs[1:]


def rules(path: Path) -> Path:
    call: dict[str, Any] = {"name": "read_file", "arguments": {"path": "next.py"}}
    rule = {"match": {"tools": True}, "reply": {"content": SAID, "tool_calls": [call]}, "repeat": True}
    path.write_text(json.dumps(rule))
    return path


@click.command(cls=RefusingCommand)
@click.option("--model", default="test:llama", show_default=True, help="A test:ARCH model.")
@click.option("--tools", default="0,0.5,5", show_default=True, help="Seconds that the tools take.")
@click.option("--rounds", type=IntegerRangeType(1), default=9, show_default=True, help="Pairs for each of them.")
@click.option("--threads", type=IntegerRangeType(0), default=1, show_default=True, help="As for 'anchorline serve'.")
def main(*, model: str, tools: str, rounds: int, threads: int) -> None:
    """Measure both in turns and print medians and the median of the paired ratios for each tool time."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    context = str(CONTEXT_TOKENS)
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder, ExitStack() as stack:
        script = str(rules(Path(folder) / "replies.jsonl"))
        arguments = [model, "--ctx", context, "--test-context", context, "--script", script, "--threads", str(threads)]
        clients = []
        for flag in ("--seal", "--no-seal"):
            server = start_anchorline([*arguments, flag, "--log-level", "warning"], environment=environment)
            stack.enter_context(server)
            clients.append(stack.enter_context(Client(server.wait_until_listening())))
        click.echo(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs, {rounds} pairs each, {model}")
        for seconds in map(float, tools.split(",")):
            pairs = measure(clients[0], clients[1], tool_seconds=seconds, rounds=rounds)
            click.echo(line_of(seconds, pairs))


def line_of(tool_seconds: float, pairs: list[tuple[Measured, Measured]]) -> str:
    sealed_ms, plain_ms = (statistics.median(pair[side].ttft_ms for pair in pairs) for side in (0, 1))
    sealed_delta, plain_delta = (statistics.median(pair[side].delta_tokens for pair in pairs) for side in (0, 1))
    ratio = statistics.median(sealed.ttft_ms / plain.ttft_ms for sealed, plain in pairs)
    return (
        f"tools of {tool_seconds:g} s: sealed {sealed_ms:.2f} ms for {sealed_delta:.0f} tokens, "
        f"not sealed {plain_ms:.2f} ms for {plain_delta:.0f} tokens, median ratio {ratio:.3f}"
    )


if __name__ == "__main__":
    main()
