"""A short agent session over HTTP: what each call restored, prefilled, and would have cost without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from anchorline.bench import agent
from anchorline.bench.client import Answer, Client
from anchorline.bench.oracle import PrefixTrie
from anchorline.errors import AnchorlineError

REPLY_TOKENS = 24
SLACK_TOKENS = 16
"""A shared start this short may be prefilled again: a title call shares a few template tokens with the agent."""


class DemoFailed(AnchorlineError):
    """A warm call restored less than it should have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCall:
    """One row. ``expected_tokens`` is the longest prefix that an earlier prompt or reply of this run contained."""

    name: str
    prompt_tokens: int
    restored_tokens: int
    tier: str
    prefilled_tokens: int
    expected_tokens: int
    ttft_ms: float | None
    prefill_ms: float
    restore_ms: float

    @property
    def missing_tokens(self) -> int:
        return max(0, self.expected_tokens - self.restored_tokens)

    @property
    def sufficient(self) -> bool:
        """Whether everything worth restoring was restored."""
        return self.missing_tokens <= SLACK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    model: str
    calls: tuple[DemoCall, ...]

    @property
    def cold_tokens_per_second(self) -> float | None:
        """Prefill speed of this run's largest prefill; what the estimates rest on."""
        cold = max(self.calls, key=lambda call: call.prefilled_tokens)
        return cold.prefilled_tokens / (cold.prefill_ms / 1000) if cold.prefill_ms > 0 else None

    def cacheless_seconds(self, call: DemoCall) -> float | None:
        """Estimate: the whole prompt at this run's cold prefill speed."""
        speed = self.cold_tokens_per_second
        return call.prompt_tokens / speed if speed else None

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for each call that restored too little."""
        return tuple(
            f"{call.name}: restored {call.restored_tokens} of {call.expected_tokens} tokens that were known before"
            for call in self.calls
            if not call.sufficient
        )

    def as_json(self) -> dict[str, Any]:
        calls = [{**asdict(call), "cacheless_seconds_estimate": self.cacheless_seconds(call)} for call in self.calls]
        return {
            "model": self.model,
            "ok": not self.failures,
            "failures": list(self.failures),
            "cold_tokens_per_second": self.cold_tokens_per_second,
            "calls": calls,
        }


def run_demo(client: Client) -> Iterator[DemoCall]:
    """Run the session, one row per finished call; raises CallFailed."""
    run = _Session(client)
    first = [agent.user("Which files does this project have, and where are invoice totals computed?")]
    yield run.call("first turn", first)

    first += [
        agent.tool_call("call_1", "list_folder", '{"path": ".", "recursive": true}'),
        agent.tool_result("call_1", agent.LISTING),
    ]
    yield run.call("tool result", first)
    first.append(agent.assistant(run.last_text))

    title = [agent.user("Which files does this project have, and where are invoice totals computed?")]
    yield run.call("title request", title, tools=False, system=agent.TITLE_SYSTEM)

    second = [agent.user("Run the tests and tell me which of them fail.")]
    yield run.call("second session", second)

    second += [
        agent.tool_call("call_1", "run_command", '{"command": "pytest -q"}'),
        agent.tool_result(
            "call_1", "exit code 1\n.....F..\nFAILED tests/test_totals.py::test_rounding\n1 failed, 7 passed"
        ),
    ]
    yield run.call("its tool result", second)

    first.append(agent.user("Thanks. Read totals.py and say how amounts are rounded."))
    yield run.call("back to the first", first)


class _Session:
    """Sends calls and keeps what the server has seen, so that each call's due is known before it is sent."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen = PrefixTrie()
        self.last_text = ""

    def call(
        self, name: str, messages: list[agent.Message], *, tools: bool = True, system: str = agent.SYSTEM
    ) -> DemoCall:
        body = agent.chat_body(list(messages), max_tokens=REPLY_TOKENS, tools=tools, system=system)
        prompt = self._client.prompt_tokens(body)
        # The last prompt token is always computed again: its logits are not kept.
        expected_tokens = min(self._seen.longest_prefix(prompt), int(prompt.size) - 1)
        answer = self._client.stream_chat(body)
        self._seen.add(prompt)
        self.last_text = answer.text
        return _row(name, answer, expected_tokens)


def _row(name: str, answer: Answer, expected_tokens: int) -> DemoCall:
    return DemoCall(
        name=name,
        prompt_tokens=answer.prompt_tokens,
        restored_tokens=answer.cached_tokens,
        tier=answer.tier,
        prefilled_tokens=answer.prefilled_tokens,
        expected_tokens=expected_tokens,
        ttft_ms=answer.ttft_ms,
        prefill_ms=answer.timed.prompt_ms,
        restore_ms=answer.timed.restore_ms,
    )


def table_of(report: DemoReport) -> Table:
    """The report for a terminal, 80 columns wide at most."""
    table = Table(title=f"An agent's calls to {report.model}", title_justify="left", caption_justify="left")
    table.add_column("call", no_wrap=True)
    for heading in ("prompt", "restored", "from", "prefilled", "TTFT", "no cache", ""):
        table.add_column(heading, justify="left" if heading in ("from", "") else "right", no_wrap=True)
    for call in report.calls:
        seconds = report.cacheless_seconds(call)
        table.add_row(
            call.name,
            str(call.prompt_tokens),
            str(call.restored_tokens),
            "both" if "+" in call.tier else call.tier,
            str(call.prefilled_tokens),
            f"{call.ttft_ms / 1000:.2f} s" if call.ttft_ms is not None else "?",
            f"≈ {seconds:.2f} s" if seconds is not None else "?",
            "ok" if call.sufficient else f"{call.missing_tokens} missing",
        )
    prompt_tokens = sum(call.prompt_tokens for call in report.calls)
    prefilled_tokens = sum(call.prefilled_tokens for call in report.calls)
    table.caption = f"Prefilled {prefilled_tokens} tokens; a server without a cache prefills all {prompt_tokens}."
    speed = report.cold_tokens_per_second
    if speed is not None:
        table.caption += f"\nno cache: an estimate, every prompt token at this run's cold {speed:.0f} tokens/s."
    return table
