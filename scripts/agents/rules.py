"""The script of the test runs: two questions, a tool round for each, and a word for every side call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIRST = "Please run the first command of our list."
SECOND = "Now run the second command of our list."
MARK = "command of our list"
"""In both questions, so that calls of the main chat can be told from others."""


def shell_calls(text: str) -> list[dict[str, Any]]:
    """``echo text``, in the words of every agent's shell tool."""
    command = f"echo {text}"
    described = {"command": command, "description": "Print a text"}
    return [
        {"name": "terminal", "arguments": {"command": command}},  # hermes-agent
        {"name": "Bash", "arguments": described},  # Claude Code
        {"name": "exec_command", "arguments": {"cmd": command}},  # Codex
        {"name": "shell", "arguments": {"command": ["bash", "-lc", command]}},  # Codex, before
        {"name": "exec", "arguments": {"command": command}},  # OpenClaw
        {"name": "run_shell_command", "arguments": {**described, "is_background": False}},  # Qwen Code
        {"name": "run_commands", "arguments": {"commands": [command]}},  # Cline
        {"name": "bash", "arguments": described},  # OpenCode, pi, mini-swe-agent
        {"name": "echo", "arguments": {"text": text}},  # the tool of our own drivers
    ]


def tool_rules() -> list[dict[str, Any]]:
    """A tool round for each question, then an answer; anything else gets the server's default reply."""
    rounds = [(FIRST, "first"), (SECOND, "second")]
    calls = [
        {
            "match": {"tools": True, "contains": question, "results": False},
            "reply": {"content": f"I run the {text} one.", "tool_calls": [shell_calls(text)]},
            "repeat": True,  # agents ask again when they find the server slow
        }
        for question, text in rounds
    ]
    answer = {"match": {"tools": True, "results": True}, "reply": {"content": "It printed its text."}, "repeat": True}
    title = {"match": {"tools": False}, "reply": {"content": "Running two commands"}, "repeat": True}
    return [*calls, answer, title]


def write_rules(path: Path, rules: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(rule)}\n" for rule in rules))


def final_answer_rules() -> list[dict[str, Any]]:
    """For agents that end with a tool of their own and get results as user messages."""
    answer = {"name": "final_answer", "arguments": {"answer": "It printed its text."}}
    ends = {"match": {"contains": "Observation"}, "reply": {"tool_calls": [answer]}, "repeat": True}
    *questions, after, title = tool_rules()
    return [*questions, ends, after, title]


def one_turn_rules() -> list[dict[str, Any]]:
    """Both tool rounds for the first question."""
    again: dict[str, Any] = {
        "match": {"results": True, "contains": "first"},
        "reply": {"content": "Now the second one.", "tool_calls": [shell_calls("second")]},
    }
    return [again, *tool_rules()]


def one_task_rules() -> list[dict[str, Any]]:
    """For agents that do one task and end with a command."""
    commands = ["first", "second", "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    return [
        {"match": {"tools": True}, "reply": {"content": f"Now {text}.", "tool_calls": [shell_calls(text)]}}
        for text in commands
    ]


def edit_rules() -> list[dict[str, Any]]:
    """For agents without tools that edit a file by what the reply says."""
    return [
        {"match": {"contains": question}, "reply": {"content": f"I write it down.\n\nnotes.txt\n```\n{text}\n```\n"}}
        for question, text in ((FIRST, "first"), (SECOND, "second"))
    ]
