"""The file of --script: what is read, and how what cannot be read is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anchorline.errors import ConfigError
from anchorline.script.rules import FILE_LIMIT_BYTES, Match, Reply, Rule, ToolCall, read_rules


def write(folder: Path, *lines: str) -> str:
    path = folder / "replies.jsonl"
    path.write_text("\n".join(lines))
    return str(path)


def test_rules_are_read_in_order_and_empty_lines_skipped(tmp_path: Path) -> None:
    first: dict[str, Any] = {
        "match": {"tools": True, "results": False, "contains": "list", "system": "helper"},
        "reply": {"content": "Looking.", "tool_calls": [{"name": "ls", "arguments": {"path": "."}}]},
        "repeat": True,
    }
    second = {"reply": {"reasoning": "Hm.", "tool_calls": [[{"name": "shell"}, {"name": "bash"}]]}}
    path = write(tmp_path, json.dumps(first), "", json.dumps(second), "")
    assert read_rules(path) == (
        Rule(
            match=Match(tools=True, results=False, contains="list", system="helper"),
            reply=Reply(content="Looking.", tool_calls=(ToolCall(name="ls", arguments={"path": "."}),)),
            repeat=True,
        ),
        Rule(reply=Reply(reasoning="Hm.", tool_calls=((ToolCall(name="shell"), ToolCall(name="bash")),))),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "truncated"),
        ("[]", "object"),
        ("{}", "reply"),
        ('{"reply": {}}', "the reply is empty"),
        ('{"reply": {"content": 1}}', "reply.content"),
        ('{"reply": {"text": "a"}}', "unknown field `text`"),
        ('{"reply": {"content": "a"}, "match": {"tool": true}}', "unknown field `tool`"),
        ('{"reply": {"content": "a"}, "repeat": 2}', "repeat"),
        ('{"reply": {"content": "a", "raw": "b"}}', "reply.raw cannot be combined"),
        ('{"reply": {"tool_calls": [{"name": "a", "arguments": "{}"}]}}', "arguments"),
    ],
)
def test_an_unusable_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = write(tmp_path, '{"reply": {"content": "fine"}}', line)
    with pytest.raises(ConfigError) as raised:
        read_rules(path)
    assert str(raised.value).startswith(f"--script: {path}, line 2: ")
    assert said in str(raised.value)


def test_a_file_that_cannot_be_read_or_is_too_large_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--script: .*nothing cannot be read"):
        read_rules(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"--script: .* is larger than"):
        read_rules(write(tmp_path, " " * (FILE_LIMIT_BYTES + 1)))


def test_alternatives_give_the_first_tool_that_is_offered() -> None:
    shell, bash, read = ToolCall(name="shell"), ToolCall(name="bash"), ToolCall(name="read")
    reply = Reply(tool_calls=((shell, bash), read))
    assert reply.chosen_calls({"bash": 1, "read": 1}) == [bash, read]
    assert reply.chosen_calls({"bash": 1, "shell": 1, "read": 1}) == [shell, read]
    assert reply.chosen_calls({"bash": 1}) is None
    assert Reply(content="a").chosen_calls({}) == []
