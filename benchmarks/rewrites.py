"""Tokens prefilled of an agent session whose head changes with every call, with each rewrite and without.

Every row is a server of its own that gets the same calls: four questions, three tool rounds each. Counts, not times.

Run: python benchmarks/rewrites.py [--model test:llama]
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from anchorline.bench import agent
from anchorline.bench.client import Client
from anchorline.bench.process import start_anchorline
from anchorline.refusal import RefusingCommand

CONTEXT_TOKENS = 65536
QUESTIONS = 4
ROUNDS = 3
RESULT = "def total(lines):\n    return sum(line.amount for line in lines)\n" * 3
TEMPLATE = """<|im_start|>system
{{ messages[0].content }}
{%% if tools %%}{{ tools | tojson }}{%% endif %%}%s<|im_end|>
{%% for message in messages[1:] %%}<|im_start|>{{ message.role }}
{{ message.content }}{%% for call in message.tool_calls or [] %%}{{ call.function | tojson }}{%% endfor %%}<|im_end|>
{%% endfor %%}{%% if add_generation_prompt %%}<|im_start|>assistant
{%% endif %%}"""
CLOCK = "\nIt is {{ strftime_now('%H:%M:%S.%f') }}."
"""Another text each time that it is rendered."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One server and what is wrong with what it gets."""

    name: str
    clock: bool = False
    shuffled: bool = False
    dated: bool = False
    flags: tuple[str, ...] = field(default=())


CASES = (
    Case(name="nothing changes"),
    Case(name="a clock in the system prompt", clock=True),
    Case(name="… --float-volatile", clock=True, flags=("--float-volatile",)),
    Case(
        name="… --float-volatile that remembers nothing",
        clock=True,
        flags=("--float-volatile", "--max-rewrite-bytes", "0"),
    ),
    Case(name="tools and keys in any order", shuffled=True),
    Case(name="… --canonical-tools", shuffled=True, flags=("--canonical-tools",)),
    Case(name="a template that shows the time", dated=True),
    Case(name="… --pin-date", dated=True, flags=("--pin-date",)),
)


def session(case: Case) -> Iterator[Body]:
    """The calls of one conversation, in order."""
    chance = random.Random(0)
    history: list[agent.Message] = []
    for question in range(QUESTIONS):
        history.append(agent.user(f"Question {question}: where are the invoices added up?"))
        for step in range(ROUNDS + 1):
            number = question * (ROUNDS + 1) + step
            first, rest = agent.SYSTEM.split("\n", 1)
            clock = f"It is 14:{number:02}:00 now.\n" if case.clock else ""
            body = agent.chat_body(list(history), max_tokens=1, system=f"{first}\n{clock}{rest}")
            if case.shuffled:
                body["tools"] = shuffled(chance.sample(body["tools"], len(body["tools"])), chance)
            yield body
            if step < ROUNDS:
                id = f"c{number}"
                history += [agent.tool_call(id, "read_file", '{"path": "a.py"}'), agent.tool_result(id, RESULT)]
        history.append(agent.assistant("In totals.py."))


def shuffled(value: Any, chance: random.Random) -> Any:
    """``value`` with the keys of every object in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], chance) for key in chance.sample(sorted(value), len(value))}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


def measure(case: Case, model: str, folder: Path) -> tuple[int, int]:
    """(prompt tokens, tokens prefilled) of a session."""
    template = folder / "template.jinja"
    template.write_text(TEMPLATE % (CLOCK if case.dated else ""))
    context = str(CONTEXT_TOKENS)
    arguments = [model, "--ctx", context, "--test-context", context, "--threads", "1", "--no-seal"]
    arguments += ["--chat-template", str(template), "--log-level", "warning", *case.flags]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    with (
        start_anchorline(arguments, environment=environment) as server,
        Client(server.wait_until_listening()) as client,
    ):
        answers = [client.chat(body) for body in session(case)]
    return sum(answer.prompt_tokens for answer in answers), sum(answer.prefilled_tokens for answer in answers)


@click.command(cls=RefusingCommand)
@click.option("--model", default="test:llama", show_default=True, help="As for 'anchorline serve'.")
def main(*, model: str) -> None:
    """Count what each rewrite spares, a line each."""
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-") as folder:
        for case in CASES:
            prompt_tokens, prefilled_tokens = measure(case, model, Path(folder))
            click.echo(f"{case.name:42} {prefilled_tokens:9,} of {prompt_tokens:9,} tokens prefilled")


if __name__ == "__main__":
    main()
