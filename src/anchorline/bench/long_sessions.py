"""Long conversations over one head, taking turns, in less memory than they need.

    | head, shared | turn 1 of A | turn 2 of A |        A1 B1 … F1 A2 B2 … F2 …
                   | turn 1 of B | turn 2 of B |

The server runs under a hard limit (RLIMIT_DATA) of what it takes with the smallest cache, plus the cache's budget,
plus a quarter of live KV and budget. After each call what it restored is held against what it had seen:

* the head is never prefilled again,
* less than was seen is restored only where segments were evicted, or were not let in,
* the kept rows take at most 1.05 x kept tokens x bytes per token.

Run: python -m anchorline.bench.long_sessions [--model MODEL] [--ctx 131072] [--tokens 100000] [--conversations 6]
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from anchorline.bench import agent
from anchorline.bench.client import Client
from anchorline.bench.models import served_model
from anchorline.bench.process import ServerFailed, ServerProcess, start_anchorline
from anchorline.errors import AnchorlineError
from anchorline.numbers import FiniteRangeType, IntegerRangeType
from anchorline.refusal import RefusingCommand

WARM_UP_CALLS, WARM_UP_TOKENS = 2, 3000
"""What a server works through before it is measured: the second call differs from one that it has seen."""
SLACK_SHARE = 0.25
"""Of live KV and budget: what the server may take beyond them."""
WASTE_MAX = 1.05
"""Bytes of kept rows ÷ (kept tokens x bytes per token)."""
NOT_IN_A_TIER = ("evicted", "unsaved")
"""Reasons of a miss that mean that the segments are not there."""
SMALLEST_CACHE_BYTES = 1 << 20
SAMPLE_WORDS = 2000
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of the server. Token counts are aimed at, not exact."""

    context_tokens: int
    conversations: int
    head_tokens: int
    tokens: int
    """Length of each conversation at its end, with the head."""
    turns: int
    budget_bytes: int

    @property
    def turn_tokens(self) -> int:
        return (self.tokens - self.head_tokens) // self.turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What ``anchorline fit`` computes for a model: sizes in bytes, and its kind of memory."""

    kind: str
    kv_bytes: int
    row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One call, and what the host tier held when it had ended."""

    conversation: str
    turn: int
    prompt_tokens: int
    restored_tokens: int
    seen_tokens: int
    miss: str | None
    tier: str
    ttft_ms: float | None
    host_tokens: int
    row_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All calls of one run. ``faults`` says in words what was not as it should be."""

    load: Load
    footprint: Footprint
    limit_bytes: int
    peak_bytes: int
    """Resident bytes at most (VmHWM)."""
    head_tokens: int
    visits: tuple[Visit, ...]
    exit_code: int
    faults: list[str] = field(default_factory=list)


class Writer:
    """Texts of about so many tokens in the server's own tokens; equal seeds give equal texts."""

    def __init__(self, client: Client, *, seed: int) -> None:
        self._random = random.Random(seed)
        sample = self._words(SAMPLE_WORDS)
        counted = client.post("/tokenize", {"content": sample})["tokens"]
        self._words_per_token = SAMPLE_WORDS / len(counted)

    def text(self, tokens: int) -> str:
        return self._words(max(1, int(tokens * self._words_per_token)))

    def _words(self, count: int) -> str:
        return " ".join("".join(self._random.choices(LETTERS, k=self._random.randint(2, 9))) for _ in range(count))


def run(model: str, load: Load, *, arguments: Sequence[str] = (), progress: Callable[[Visit], None]) -> Report:
    """Measure a server with the smallest cache, then let one with the whole budget serve ``load``."""
    footprint = measure_footprint(model, load.context_tokens)
    with serve(model, load, SMALLEST_CACHE_BYTES, arguments) as server, Client(server.wait_until_listening()) as client:
        for seed in range(WARM_UP_CALLS):
            client.chat(body(Writer(client, seed=seed).text(min(load.tokens, WARM_UP_TOKENS)), []))
        smallest_bytes = process_bytes(server.pid, "VmData")
    slack_bytes = int(SLACK_SHARE * (footprint.kv_bytes + load.budget_bytes))
    limit_bytes = smallest_bytes + load.budget_bytes + slack_bytes
    with serve(model, load, load.budget_bytes, arguments) as server:
        resource.prlimit(server.pid, resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
        with Client(server.wait_until_listening()) as client:
            head_tokens, visits = converse(client, load, progress=progress)
        peak_bytes = process_bytes(server.pid, "VmHWM")
        exit_code = server.stop()
    report = Report(
        load=load,
        footprint=footprint,
        limit_bytes=limit_bytes,
        peak_bytes=peak_bytes,
        head_tokens=head_tokens,
        visits=tuple(visits),
        exit_code=exit_code,
    )
    report.faults.extend(faults_of(report))
    return report


def serve(model: str, load: Load, cache_bytes: int, arguments: Sequence[str]) -> ServerProcess:
    """A server for one stream, that keeps no finished sequence among the live cells unless ``arguments`` say so."""
    sizes = ["--ctx", str(load.context_tokens), "--cache-ram", str(cache_bytes), "--parallel", "1"]
    sizes += ["--prepare-threads", "1"]  # each thread's stack counts by what it may grow to
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    return start_anchorline([model, *sizes, "--log-level", "warning", *arguments], environment=environment)


def measure_footprint(model: str, context_tokens: int) -> Footprint:
    """What ``anchorline fit`` says of ``model``. Raises AnchorlineError."""
    command = [sys.executable, "-m", "anchorline", "fit", model, "--ctx", str(context_tokens), "--parallel", "1"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise AnchorlineError(f"anchorline fit failed: {done.stderr.strip()}")
    sizes = json.loads(done.stdout)
    return Footprint(kind=sizes["kind"], kv_bytes=sizes["kv_bytes"], row_bytes=sizes["row_bytes"])


def process_bytes(pid: int, name: str) -> int:
    """A size in ``/proc/PID/status``, in bytes. Raises ServerFailed once the process has ended."""
    lines = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:")]
    if not lines:
        raise ServerFailed("the server has ended")
    return int(lines[0].split()[1]) * 1024


def converse(client: Client, load: Load, *, progress: Callable[[Visit], None]) -> tuple[int, list[Visit]]:
    """Let every conversation take its turns, one after the other; (tokens of the head, the calls)."""
    head = Writer(client, seed=0).text(load.head_tokens)
    writers = [Writer(client, seed=number + 1) for number in range(load.conversations)]
    histories: list[list[agent.Message]] = [[] for _ in writers]
    visits: list[Visit] = []
    _, cuts = client.prompt(body(head, [agent.user("?")]))
    for turn in range(load.turns):
        for number, (writer, history) in enumerate(zip(writers, histories, strict=True)):
            history.append(agent.user(writer.text(load.turn_tokens)))
            visit = call(client, body(head, history), conversation=LETTERS[number].upper(), turn=turn + 1)
            history.append(agent.assistant("Done."))
            visits.append(visit)
            progress(visit)
    return cuts[0], visits


def body(head: str, history: list[agent.Message]) -> dict[str, Any]:
    return agent.chat_body(history or [agent.user("?")], max_tokens=1, system=head)


def call(client: Client, request: dict[str, Any], *, conversation: str, turn: int) -> Visit:
    answer = client.chat(request)
    metrics = settled(client)
    return Visit(
        conversation=conversation,
        turn=turn,
        prompt_tokens=answer.prompt_tokens,
        restored_tokens=answer.cached_tokens,
        seen_tokens=answer.timings["seen_n"],
        miss=answer.timings["miss"],
        tier=answer.tier,
        ttft_ms=answer.ttft_ms,
        host_tokens=int(metrics["anchorline_host_tokens"]),
        row_bytes=int(metrics["anchorline_host_used_bytes"] - metrics["anchorline_host_state_bytes"]),
        used_bytes=int(metrics["anchorline_host_used_bytes"]),
    )


def settled(client: Client) -> dict[str, float]:
    """The metrics once everything is saved: states that are still on their way would count as rows."""
    metrics = client.metrics()
    while metrics["anchorline_pending_saves"]:
        metrics = client.metrics()
    return metrics


def faults_of(report: Report) -> list[str]:
    """What is wrong about a run, in words; empty when all is as it should be."""
    faults = [f"the server ended with exit code {report.exit_code}"] if report.exit_code else []
    for number, visit in enumerate(report.visits):
        name = f"{visit.conversation}{visit.turn}"
        if number and visit.restored_tokens < report.head_tokens:
            faults.append(f"{name}: {visit.restored_tokens} restored of a head of {report.head_tokens} tokens")
        if visit.miss not in (None, *NOT_IN_A_TIER):
            faults.append(f"{name}: {visit.restored_tokens} of {visit.seen_tokens} restored, since: {visit.miss}")
        if visit.used_bytes > report.load.budget_bytes:
            faults.append(f"{name}: {visit.used_bytes} bytes kept, the budget is {report.load.budget_bytes}")
        if visit.row_bytes > WASTE_MAX * visit.host_tokens * report.footprint.row_bytes:
            faults.append(f"{name}: {visit.row_bytes} bytes of rows for {visit.host_tokens} tokens")
    return faults


def line_of(visit: Visit) -> str:
    kept = f"{visit.host_tokens} tokens, {visit.used_bytes / (1 << 20):.0f} MiB kept"
    prefilled = visit.prompt_tokens - visit.restored_tokens
    return (
        f"{visit.conversation}{visit.turn}: {visit.prompt_tokens} tokens, {visit.restored_tokens} restored "
        f"({visit.tier}), {prefilled} prefilled, {visit.miss or 'nothing'} missed, "
        f"TTFT {(visit.ttft_ms or 0) / 1000:.2f} s; {kept}"
    )


def summary_of(report: Report) -> str:
    mib = 1 << 20
    later = [visit for visit in report.visits if visit.turn > 1]
    whole = sum(visit.miss is None for visit in later)
    prompt = sum(visit.prompt_tokens for visit in report.visits)
    prefilled = prompt - sum(visit.restored_tokens for visit in report.visits)
    waste = max(v.row_bytes / max(v.host_tokens * report.footprint.row_bytes, 1) for v in report.visits)
    return (
        f"{len(report.visits)} calls, {prefilled} of {prompt} prompt tokens prefilled; {whole} of {len(later)} later "
        f"turns restored all of their conversation; head of {report.head_tokens} tokens; rows at most {waste:.3f} x "
        f"tokens x {report.footprint.row_bytes} bytes; peak {report.peak_bytes / mib:.0f} MiB resident, hard limit "
        f"{report.limit_bytes / mib:.0f} MiB (live KV {report.footprint.kv_bytes / mib:.0f}, "
        f"budget {report.load.budget_bytes / mib:.0f})"
    )


@click.command(cls=RefusingCommand)
@click.option("--model", default="test:llama", show_default=True, help="A GGUF file, 'smollm2' or 'test:ARCH'.")
@click.option("--layers", type=IntegerRangeType(1), default=None, help="Keep only this many layers of a model file.")
@click.option("--ctx", "context_tokens", type=IntegerRangeType(1024), default=131072, show_default=True)
@click.option("--conversations", type=IntegerRangeType(2, len(LETTERS)), default=6, show_default=True)
@click.option("--head-tokens", type=IntegerRangeType(64), default=20_000, show_default=True)
@click.option("--tokens", type=IntegerRangeType(256), default=100_000, show_default=True, help="Of each conversation.")
@click.option("--turns", type=IntegerRangeType(1), default=2, show_default=True, help="Of each conversation.")
@click.option(
    "--fits", type=FiniteRangeType(0.5), default=2.5, show_default=True, help="Conversations that --cache-ram holds."
)
@click.option("--serve-args", default="", help="More options for 'anchorline serve', separated by spaces.")
@click.option("--json", "as_json", is_flag=True, help="Print every call as JSON.")
def main(
    *,
    model: str,
    layers: int | None,
    context_tokens: int,
    conversations: int,
    head_tokens: int,
    tokens: int,
    turns: int,
    fits: float,
    serve_args: str,
    as_json: bool,
) -> None:
    """Serve long conversations in little memory; exit with 1 when something was not as it should be."""
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder:
        model, *context = served_model(model, folder=Path(folder), layers=layers, context_tokens=context_tokens)
        arguments = ["--threads", "1", *serve_args.split(), *context]
        row_bytes = measure_footprint(model, context_tokens).row_bytes
        load = Load(
            context_tokens=context_tokens,
            conversations=conversations,
            head_tokens=head_tokens,
            tokens=tokens,
            turns=turns,
            budget_bytes=int((head_tokens + fits * (tokens - head_tokens)) * row_bytes),
        )
        report = run(model, load, arguments=arguments, progress=lambda visit: click.echo(line_of(visit), err=True))
    click.echo(json.dumps(asdict(report), indent=2) if as_json else summary_of(report))
    for fault in report.faults:
        click.echo(f"fault: {fault}", err=True)
    sys.exit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
