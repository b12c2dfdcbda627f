"""The files of ``cache warm`` and ``--warm``: every form is read, each head once, and what is wrong has a place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anchorline.cli import warm_file
from anchorline.cli.warm_file import read_prefixes
from anchorline.errors import ConfigError
from anchorline.limits import Limits

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "Hello."}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CHAT = {"model": "m", "temperature": 0, "messages": [SYSTEM, USER], "tools": [LOOK]}
HEAD = {"messages": [SYSTEM], "tools": [LOOK]}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text(text)
    return path


def lines(*entries: Any) -> str:
    return "\n".join(json.dumps(entry) for entry in entries) + "\n"


def bodies(path: Path, *, whole: bool = False) -> list[dict[str, Any]]:
    return [prefix.body for prefix in read_prefixes(path, limits=Limits(), whole=whole).prefixes]


def recorded(body: dict[str, Any], path: str = "/v1/chat/completions", **more: Any) -> dict[str, Any]:
    return {"t": 0, "t_end": 1, "path": path, "body": body, **more}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CHAT),
        json.dumps(CHAT, indent=2),
        json.dumps([CHAT]),
        lines(CHAT, CHAT),
        lines(CHAT, {**CHAT, "messages": [SYSTEM, USER, REPLY, USER]}),
        lines(recorded(CHAT)),
        lines(recorded(CHAT), recorded(CHAT)),
        lines(
            {"tools_def": 0, "tools": [LOOK]},
            recorded({}, base=None, keep=0, add=[SYSTEM, USER], tools_ref=0),
            recorded({}, base=0, keep=2, add=[REPLY, USER], tools_ref=0),
        ),
    ],
    ids=["object", "indented", "list", "lines", "same-head", "one-entry", "trace", "delta"],
)
def test_every_form_of_a_file_gives_its_head_once(tmp_path: Path, text: str) -> None:
    assert bodies(written(tmp_path, text)) == [HEAD]


def test_a_head_is_what_the_messages_protocol_calls_system_and_tools(tmp_path: Path) -> None:
    body = {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "Be brief."},
        ],
        "messages": [USER],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "thinking": {"type": "disabled"},
    }
    expected = [HEAD | {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}]
    assert bodies(written(tmp_path, json.dumps(body))) == expected
    assert bodies(written(tmp_path, lines(recorded(body, "/v1/messages")))) == expected


def test_a_head_is_what_the_responses_protocol_calls_instructions_and_tools(tmp_path: Path) -> None:
    body = {
        "instructions": "Be brief.",
        "input": "hi",
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "reasoning": {"effort": "low"},
    }
    expected = [HEAD | {"reasoning_effort": "low"}]
    assert bodies(written(tmp_path, json.dumps(body))) == expected
    assert bodies(written(tmp_path, lines(recorded(body, "/v1/responses")))) == expected


def test_all_messages_are_taken_when_they_are_wanted(tmp_path: Path) -> None:
    longer = {"messages": [SYSTEM, USER, REPLY, USER]}
    path = written(tmp_path, lines(CHAT, longer, {"messages": [USER]}))
    assert bodies(path) == [HEAD, {"messages": [SYSTEM]}]
    assert bodies(path, whole=True) == [HEAD | {"messages": [SYSTEM, USER]}, longer, {"messages": [USER]}]


def test_a_head_is_found_where_it_comes_first(tmp_path: Path) -> None:
    path = written(tmp_path, "\n" + lines({"messages": [USER]}, CHAT, CHAT))
    (prefix,) = read_prefixes(path, limits=Limits()).prefixes
    assert prefix.origin == f"{path}, line 3"


def test_calls_of_a_trace_that_cannot_be_used_spoil_none_of_the_others(tmp_path: Path) -> None:
    """They are what an agent once sent, and no mistake in the file."""
    continued = recorded({"input": "x", "previous_response_id": "r"}, "/v1/responses")
    robot = recorded({"messages": [{"role": "robot", "content": "x"}]})
    text = recorded({"prompt": "x"}, "/v1/completions")
    path = written(tmp_path, lines(continued, text, recorded(CHAT), robot, continued))
    found = read_prefixes(path, limits=Limits())
    assert [prefix.body for prefix in found.prefixes] == [HEAD]
    continuing, completion, unknown = found.left_out
    assert continuing.startswith(
        "requests.jsonl: 2 of 5 calls left out: previous_response_id names what only the server"
    )
    assert continuing.endswith("(line 1, line 5)")
    assert completion == "requests.jsonl: 1 of 5 calls left out: /v1/completions is no chat call (line 2)"
    assert "messages[0].role is 'robot'" in unknown


CONTINUED: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": "hi",
    "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
    "previous_response_id": "r",
}


@pytest.mark.parametrize(
    "kept",
    [{}, {"conversation": "c"}, {"input": [{"type": "item_reference", "id": "i"}], "previous_response_id": None}],
)
def test_a_recorded_call_that_goes_on_from_what_its_server_kept_has_a_head(
    tmp_path: Path, kept: dict[str, Any]
) -> None:
    found = read_prefixes(written(tmp_path, lines(recorded(CONTINUED | kept, "/v1/responses"))), limits=Limits())
    assert [prefix.body for prefix in found.prefixes] == [HEAD]
    assert not found.left_out


@pytest.mark.parametrize(
    ("kept", "whole"), [({"instructions": None}, False), ({"prompt": {"id": "p"}}, False), ({}, True)]
)
def test_what_only_the_server_has_of_a_recorded_call_is_not_guessed(
    tmp_path: Path, kept: dict[str, Any], whole: bool
) -> None:
    path = written(tmp_path, lines(recorded(CHAT), recorded(CONTINUED | kept, "/v1/responses")))
    found = read_prefixes(path, limits=Limits(), whole=whole)
    assert [prefix.origin for prefix in found.prefixes] == [f"{path}, line 1"]
    assert found.left_out[0].startswith("requests.jsonl: 1 of 2 calls left out: ")


def test_a_trace_without_a_call_that_can_be_used_says_why(tmp_path: Path) -> None:
    path = written(tmp_path, lines(recorded({"prompt": "x"}, "/v1/completions")))
    with pytest.raises(ConfigError, match=r"system prompt to warm; .*1 of 1 calls left out: /v1/completions"):
        read_prefixes(path, limits=Limits())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("{", "is not valid JSON"),
        ('{\n "messages": [\n', "is not valid JSON"),
        (lines(CHAT) + "{", ", line 2 is not valid JSON"),
        (lines(CHAT, [CHAT]), ", line 2: a request must be an object, not an array"),
        (json.dumps([CHAT, 7]), ", entry 2: a request must be an object, not an integer"),
        (json.dumps("hi"), ": a request must be an object, not a string"),
        (lines(CHAT, {"messages": []}), ", line 2: messages must hold at least one message"),
        (lines(CHAT, {"model": "m"}), ", line 2: messages is required"),
        (lines({"messages": [{"role": "robot"}]}), ": messages[0].role is 'robot'"),
        (lines(CHAT, {"system": "s", "messages": [{"role": "user", "content": 1}]}), ", line 2: messages[0].content"),
        (lines(CHAT, {"input": [{"role": "robot", "content": "x"}]}), ", line 2: input[0].role"),
        (lines({"input": "x", "previous_response_id": "r"}), ": previous_response_id: send all of the input"),
        (lines(recorded(CHAT), {"path": "/v1/chat/completions"}), ", line 2 is no trace entry: KeyError 'body'"),
        (lines(recorded(CHAT), recorded({}, base=7, keep=1, add=[])), ", line 2 is no trace entry: IndexError"),
        (lines({"messages": [USER]}), "none of its requests has tools or a system prompt"),
    ],
)
def test_what_is_wrong_has_its_file_line_and_field(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_prefixes(path, limits=Limits())
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    with pytest.raises(ConfigError, match=f"{missing} cannot be read: No such file"):
        read_prefixes(missing, limits=Limits())


def test_a_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, json.dumps(CHAT))
    monkeypatch.setattr(warm_file, "FILE_LIMIT_BYTES", path.stat().st_size - 1)
    with pytest.raises(ConfigError, match="is larger than"):
        read_prefixes(path, limits=Limits())
    monkeypatch.setattr(warm_file, "FILE_LIMIT_BYTES", path.stat().st_size)
    assert bodies(path) == [HEAD]
