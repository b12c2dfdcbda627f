"""The runner of real agents, with a stand-in for the agent: recording, the server's account, the verdict."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from anchorline.bench.process import start_anchorline
from anchorline.script.rules import read_rules
from calls import Call, as_rows, calls_of, refusals, reported, verdict
from recording import recording
from rules import FIRST, MARK, SECOND, edit_rules, final_answer_rules, one_task_rules, tool_rules, write_rules

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
CALL = Call(main=True, messages=2, tools=1, prompt=100, restored=0, prefilled=100, generated=10, seen=0, differs="none")


def later(**changes: Any) -> Call:
    whole = {"prompt": 140, "seen": 110, "restored": 110, "prefilled": 30}
    return dataclasses.replace(CALL, **(whole | changes))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (later(), "all 1 later main calls restored everything"),
        (later(prompt=110, restored=109, prefilled=1), "all 1 later main calls restored everything"),
        (later(restored=109, prefilled=31), "1 of 1 later main calls restored less"),
        (later(main=False, restored=0), "no second main call"),
    ],
)
def test_the_verdict_compares_what_was_restored_with_what_was_seen(second: Call, said: str) -> None:
    assert verdict([CALL, second]).startswith(said)


def test_a_row_says_how_much_of_the_reply_before_came_back() -> None:
    fork = later(prompt=300)
    rows = as_rows([CALL, later(seen=104), fork, later(prompt=160, seen=150), later(seen=90)])
    assert [row[7] for row in rows] == ["-", "4/10", "10/10", "10/10", "-"]


@pytest.mark.parametrize("rules", [tool_rules, final_answer_rules, one_task_rules, edit_rules])
def test_the_rules_are_ones_that_a_server_reads(tmp_path: Path, rules: Any) -> None:
    path = tmp_path / "replies.jsonl"
    write_rules(path, rules())
    assert len(read_rules(str(path))) == len(rules())


def ask(url: str, messages: list[dict[str, Any]], *, stream: bool, tools: Any = None) -> dict[str, Any]:
    """One call; the message that came back, whole or put together from a stream's last words."""
    body = {"model": "m", "messages": messages, "stream": stream, **({"tools": tools} if tools else {})}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    answer.raise_for_status()
    if stream:
        return {}
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


@pytest.mark.parametrize("stream", [False, True])
def test_two_turns_of_a_stand_in_agent(tmp_path: Path, stream: bool) -> None:
    rules = tmp_path / "replies.jsonl"
    write_rules(rules, tool_rules())
    arguments = ["test:llama", "--ctx", "4096", "--cache-ram", "64m", "--log-format", "json", "--threads", "1"]
    with start_anchorline([*arguments, "--script", str(rules)], kept_lines=1000) as server:
        with recording(server.wait_until_listening()) as (url, exchanges):
            messages: list[dict[str, Any]] = [{"role": "user", "content": FIRST}]
            ask(url, [{"role": "user", "content": f"A title for: {FIRST}"}], stream=stream)
            said = ask(url, messages, stream=False, tools=TOOLS)
            call = said["tool_calls"][0]
            assert json.loads(call["function"]["arguments"])["command"] == "echo first"
            messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": "first"}]
            ask(url, messages, stream=stream, tools=TOOLS)
            messages += [{"role": "assistant", "content": "It printed its text."}, {"role": "user", "content": SECOND}]
            ask(url, messages, stream=stream, tools=TOOLS)
            assert httpx.post(f"{url}/v1/chat/completions", json={}, trust_env=False).status_code == 400
        server.stop()
        calls = calls_of(exchanges, reported(server.lines), uses_tools=True, mark=MARK)
    assert [(call.main, call.messages) for call in calls] == [(False, 1), (True, 1), (True, 3), (True, 5)]
    kept = [row[7].split("/") for row in as_rows(calls)]
    assert kept[:2] == [["-"], ["-"]]
    assert all(back == whole for back, whole in kept[2:])
    assert verdict(calls) == "all 2 later main calls restored everything that was seen"
    assert len(refusals(exchanges)) == 1
