"""What a warm turn costs: TTFT after a restore, after none was needed, and of the delta's prefill alone.

    |<------------- anchor: system, tools, history ------------->|<- delta ->|

The same turns, each with a delta of its own, go to two servers in alternating order:

continue   keeps finished sequences in the live cells: nothing is restored, only the delta is prefilled.
           This is the floor.
restore    keeps none (--resident-idle 0) and served another conversation in between: the anchor comes
           back from the host tier.

Run: python -m anchorline.bench.warm_turn [--model MODEL] [--layers N] [--anchor-tokens 8500]
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from anchorline.bench import agent
from anchorline.bench.client import Answer, Client
from anchorline.bench.models import served_model
from anchorline.bench.process import start_anchorline
from anchorline.errors import AnchorlineError
from anchorline.numbers import IntegerRangeType
from anchorline.refusal import RefusingCommand

PARTS = ("render_ms", "tokenize_ms", "wait_ms", "plan_ms", "restore_ms", "prompt_ms")
DELTA_WORDS = 53
"""About 70 tokens with the message's frame."""
MESSAGE_WORDS = 160


WORDS = agent.SYSTEM.split()
"""Ordinary words, so that tokens per word are ordinary too."""


class WrongPath(AnchorlineError):
    """A turn did not take the path it was meant to measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One measured call; ``ttft_ms`` is the client's, the parts are the server's, ``http_ms`` is what is left."""

    kind: str
    prompt_tokens: int
    restored_tokens: int
    delta_tokens: int
    ttft_ms: float
    http_ms: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """All turns at one depth, in pairs: ``restored[i]`` was measured beside ``continued[i]``."""

    anchor_tokens: int
    continued: tuple[Turn, ...]
    restored: tuple[Turn, ...]

    @property
    def ratio(self) -> float:
        """Median of TTFT restored ÷ TTFT continued, pair by pair."""
        return statistics.median(
            warm.ttft_ms / floor.ttft_ms for warm, floor in zip(self.restored, self.continued, strict=True)
        )

    @property
    def prefill_ratio(self) -> float:
        """The same against the continued turn's prefill alone: what HTTP, rendering and planning add too."""
        return statistics.median(
            warm.ttft_ms / floor.parts["prompt_ms"] for warm, floor in zip(self.restored, self.continued, strict=True)
        )


class Conversation:
    """A long conversation with ``agent``'s tools; every turn asked for has a delta of its own."""

    def __init__(self, client: Client, *, anchor_tokens: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._client = client
        self.messages: list[agent.Message] = []
        while self._prompt_tokens() < anchor_tokens:
            # The rest is reached from below, a pair of messages at a time.
            self.messages += [agent.user(self.words(MESSAGE_WORDS)), agent.assistant(self.words(MESSAGE_WORDS))]

    def words(self, count: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(count))

    def body(self, *more: agent.Message) -> dict[str, Any]:
        return agent.chat_body([*self.messages, *more], max_tokens=1)

    def fresh_turn(self) -> dict[str, Any]:
        return self.body(agent.user(self.words(DELTA_WORDS)))

    def _prompt_tokens(self) -> int:
        return int(self._client.prompt_tokens(self.body()).size)


def measure_depth(floor: Client, warm: Client, *, anchor_tokens: int, rounds: int, seed: int) -> Depth:
    """Alternate continued and restored turns; raises WrongPath when the server does something else."""
    conversation = Conversation(warm, anchor_tokens=anchor_tokens, seed=seed)
    for client in (floor, warm):
        client.chat(conversation.body())
    continued: list[Turn] = []
    restored: list[Turn] = []
    for number in range(rounds + 1):
        # An equal base each time: the floor's live sequence is trimmed to it, not to an earlier delta.
        floor.chat(conversation.body())
        warm.chat(other_conversation(seed=seed * 1000 + number))
        body = conversation.fresh_turn()
        jobs = [("continue", floor, continued), ("restore", warm, restored)]
        for kind, client, turns in jobs if number % 2 else reversed(jobs):
            turn = _turn(kind, client.stream_chat(body))
            if number:  # the first round warms pages, memos and speed estimates
                turns.append(turn)
    for turns, part in ((continued, "resident_n"), (restored, "host_n")):
        least = min(turn.parts[part] for turn in turns)
        if least < anchor_tokens * 0.9:
            raise WrongPath(f"{turns[0].kind}: only {least:.0f} of {anchor_tokens} anchor tokens have {part}")
    return Depth(anchor_tokens=anchor_tokens, continued=tuple(continued), restored=tuple(restored))


def other_conversation(*, seed: int) -> dict[str, Any]:
    """A call that shares nothing with the measured conversation and takes over its cells."""
    draw = random.Random(seed)
    words = " ".join(draw.choice(WORDS) for _ in range(300))
    return agent.chat_body([agent.user(words)], max_tokens=1, tools=False, system=f"Session {seed}. {words}")


def _turn(kind: str, answer: Answer) -> Turn:
    if answer.ttft_ms is None:
        raise WrongPath("a call gave no first token")
    parts = {name: float(value) for name, value in answer.timings.items() if name in (*PARTS, "resident_n", "host_n")}
    # The queue's time counts from the request's arrival and holds rendering and tokenising.
    parts["wait_ms"] = float(answer.timings["queue_ms"]) - parts["render_ms"] - parts["tokenize_ms"]
    inside_ms = float(answer.timings["ttft_ms"])
    return Turn(
        kind=kind,
        prompt_tokens=answer.prompt_tokens,
        restored_tokens=answer.cached_tokens,
        delta_tokens=answer.prefilled_tokens,
        ttft_ms=answer.ttft_ms,
        http_ms=answer.ttft_ms - inside_ms,
        parts=parts,
    )


def lines_of(depths: Sequence[Depth]) -> list[str]:
    """The report: one block of medians per depth."""
    lines = [f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs; medians in milliseconds"]
    header = ("turn", "prompt", "delta", "TTFT", "http", *(name.removesuffix("_ms") for name in PARTS))
    lines.append("".join(f"{cell:>10}" for cell in header))
    for depth in depths:
        for turns in (depth.continued, depth.restored):
            medians = [statistics.median(turn.parts[name] for turn in turns) for name in PARTS]
            cells = [
                turns[0].kind,
                str(turns[0].prompt_tokens),
                f"{statistics.median(turn.delta_tokens for turn in turns):.0f}",
                f"{statistics.median(turn.ttft_ms for turn in turns):.2f}",
                f"{statistics.median(turn.http_ms for turn in turns):.2f}",
                *(f"{value:.2f}" for value in medians),
            ]
            lines.append("".join(f"{cell:>10}" for cell in cells))
        lines.append(
            f"  at {depth.anchor_tokens} tokens: restored / continued TTFT {depth.ratio:.3f}, "
            f"restored TTFT / the delta's prefill alone {depth.prefill_ratio:.3f}"
        )
    return lines


@click.command(cls=RefusingCommand)
@click.option("--model", default="smollm2", show_default=True, help="A GGUF file, 'smollm2' or 'test:ARCH'.")
@click.option("--layers", type=IntegerRangeType(1), default=None, help="Keep only this many layers of a model file.")
@click.option("--anchor-tokens", type=IntegerRangeType(2000), default=8500, show_default=True, help="Depth at 1x.")
@click.option("--scales", default="1,2,4", show_default=True, help="Depths to measure, as multiples.")
@click.option("--rounds", type=IntegerRangeType(1), default=7, show_default=True, help="Pairs of turns at each depth.")
@click.option("--threads", type=IntegerRangeType(0), default=0, show_default=True, help="As for 'anchorline serve'.")
@click.option("--json", "as_json", is_flag=True, help="Print every turn as JSON.")
def main(
    *, model: str, layers: int | None, anchor_tokens: int, scales: str, rounds: int, threads: int, as_json: bool
) -> None:
    """Measure warm turns against their floor, over HTTP, on a server of its own."""
    multiples = [int(part) for part in scales.split(",")]
    context_tokens = (anchor_tokens * max(multiples) * 5 // 4 + 8192) // 256 * 256
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder:
        served = served_model(model, folder=Path(folder), layers=layers, context_tokens=context_tokens)
        arguments = [*served, "--ctx", str(context_tokens), "--threads", str(threads), "--log-level", "warning"]
        with ExitStack() as stack:
            clients = []
            for resident_idle in ("2", "0"):
                server = start_anchorline([*arguments, "--resident-idle", resident_idle], environment=environment)
                stack.enter_context(server)
                clients.append(stack.enter_context(Client(server.wait_until_listening())))
            depths = [
                measure_depth(*clients, anchor_tokens=anchor_tokens * multiple, rounds=rounds, seed=multiple)
                for multiple in multiples
            ]
    if as_json:
        click.echo(json.dumps([asdict(depth) for depth in depths], indent=2))
    else:
        click.echo("\n".join(lines_of(depths)))


if __name__ == "__main__":
    main()
