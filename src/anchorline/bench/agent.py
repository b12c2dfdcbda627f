"""A small agent's system prompt, tools and messages, written out for the demo and the benchmarks."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]

SYSTEM = """You are Quill, an assistant that works in a software project on the user's own machine.

Work in small steps. Look before you change anything: list folders, read the files that matter, search for names.
Say in one sentence what you are about to do, then call one tool. Never guess the contents of a file you have not
read. When a command fails, read its output, find the cause and try again in another way; do not repeat it unchanged.
Ask the user only when the answer cannot be found in the project.

Style: plain words, short sentences, no praise. Quote paths and commands exactly. When the work is done, say what you
changed, which files are involved and what you did not check.

Rules: stay inside the project folder. Do not remove files that you did not create. Do not send anything over the
network. Keep secrets out of your answers. Run the project's tests before you say that something works."""

TITLE_SYSTEM = "Give the conversation a title of at most six words. Answer with the title alone, without quotes."


def _tool(name: str, description: str, required: tuple[str, ...], **parameters: str) -> dict[str, Any]:
    kinds = {"i_": "integer", "b_": "boolean"}
    properties = {
        key.removeprefix("i_").removeprefix("b_"): {"type": kinds.get(key[:2], "string"), "description": text}
        for key, text in parameters.items()
    }
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS: list[dict[str, Any]] = [
    _tool(
        "list_folder",
        "List the files and folders in a folder, with sizes and times of change. Hidden files are left out.",
        ("path",),
        path="Folder to list, relative to the project.",
        b_recursive="Also list the folders inside it, at most 500 entries.",
    ),
    _tool(
        "read_file",
        "Read a text file, or some lines of it. Long files come back shortened; ask for the lines you need.",
        ("path",),
        path="File to read, relative to the project.",
        i_first_line="First line to return, counted from 1.",
        i_last_line="Last line to return.",
    ),
    _tool(
        "write_file",
        "Create a file or replace all of its contents. Use edit_file for small changes to a file that exists.",
        ("path", "content"),
        path="File to write, relative to the project.",
        content="The whole new contents.",
    ),
    _tool(
        "edit_file",
        "Replace one exact piece of text in a file by another. Fails when the text is missing or occurs twice.",
        ("path", "old_text", "new_text"),
        path="File to change, relative to the project.",
        old_text="The text to replace, with enough lines around it to be unique.",
        new_text="The text to put in its place.",
    ),
    _tool(
        "search",
        "Find a pattern in the files of the project and return the matching lines with file and line number.",
        ("pattern",),
        pattern="Regular expression to look for.",
        path="Folder or file to search in; the whole project when left out.",
        b_ignore_case="Match upper and lower case alike.",
    ),
    _tool(
        "run_command",
        "Run a shell command in the project folder and return its exit code and output, shortened to 200 lines.",
        ("command",),
        command="The command line.",
        i_timeout_seconds="Stop the command after this many seconds; 60 when left out.",
    ),
]

LISTING = """README.md  2.1 KB
pyproject.toml  1.4 KB
src/invoices/__init__.py  0.1 KB
src/invoices/parse.py  6.8 KB
src/invoices/totals.py  3.2 KB
tests/test_parse.py  4.9 KB
tests/test_totals.py  2.7 KB"""


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def tool_call(identity: str, name: str, arguments: str) -> Message:
    call = {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def tool_result(identity: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def chat_body(messages: list[Message], *, max_tokens: int, tools: bool = True, system: str = SYSTEM) -> dict[str, Any]:
    """A chat request with the system prompt in front, greedy so that a run can be repeated."""
    body: dict[str, Any] = {
        "model": "local",
        "messages": [{"role": "system", "content": system}, *messages],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    if tools:
        body["tools"] = TOOLS
    return body
