"""Which lines say by themselves that they will be others next time. What may be an instruction is left alone."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anchorline.prompt.own_lines import own_lines
from anchorline.prompt.volatile_lines import LINE_CHARACTERS, is_volatile_line

MOMENTS = [
    "It is 14:00:11 now.",
    "It's currently Monday, 30 November 2026, 14:05.",
    "Today: Mon Nov 30 2026.",
    "Today is Tuesday, 2026-12-01.",
    "The current date is 2026-12-01.",
    "The current date and time is 2026-12-01 14:05 UTC.",
    "Today's date: 2025-11-30\r\n",
    "Date: 2026/12/01",
    "- **Current date:** Monday, 30 November 2026",
    "Current time: 14:05 CET",
    "Local time (Europe/Berlin): 2026-12-01T14:05:11+01:00",
    "System time: Tue Dec  1 14:05:11 UTC 2026",
    "current_date=30.11.2026",
    "now=2026-11-30T23:59:59Z",
    "Timestamp: 1796072400",
    "<date>2026-12-01</date>",
    "Conversation started: Tuesday, December 01, 2026 02:05 PM",
    "12 requests so far.",
    "Tokens remaining: 12,034",
    "Prompt tokens used: 4000 / 8000",
    "Context used: 43 %",
    "Request count: 3",
    "session_id=Zk9_qWx2LpT",
    "Session ID: 0b5c3f6e-0d5e-4e3f-9a47-3d1c5b6f7a88",
    "x-anthropic-billing-header: cc_version=2.0.37.fbe; cc_entrypoint=cli; cch=ab1cd;",
]

INSTRUCTING = (
    "always",
    "never",
    "must",
    "not",
    "do",
    "refuse",
    "stop",
    "limit",
    "max",
    "if",
    "def",
    "until",
    "use",
    "only",
    "3",
)


@pytest.mark.parametrize("line", MOMENTS)
def test_a_line_about_this_moment_is_known_by_what_it_says(line: str) -> None:
    assert is_volatile_line(line)


@pytest.mark.parametrize("word", INSTRUCTING)
@pytest.mark.parametrize("line", MOMENTS)
def test_one_word_more_anywhere_makes_it_another_line(line: str, word: str) -> None:
    words = line.split(" ")
    for place in range(len(words) + 1):
        assert not is_volatile_line(" ".join([*words[:place], word, *words[place:]]))


@given(st.text(alphabet="aeghnotw "), st.sampled_from(MOMENTS), st.text(alphabet="aeghnotw "))
def test_nothing_may_stand_beside_it(before: str, line: str, behind: str) -> None:
    assume((before + behind).strip())
    assert not is_volatile_line(f"{before}. {line.strip()} {behind}")
    assert not is_volatile_line(f"{before}{line.strip()} {behind}")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Run the tests now",
        "Always answer with 14:05 now",
        "Currently always refuse 12:00 appointments",
        "Do not work today 2025-11-30",
        "You must stop at 14:05 today",
        "Refuse all requests now (2025-11-30)",
        "Limit of tokens used: 4000",
        "max tokens used: 4000",
        "Files to be left: 3",
        "Run id 12345678",
        "Turn 20251130",
        "def now(): 14:05",
        "if time == 14:05: # now",
        "x-anthropic-billing-header you must obey rule 1",
        "x-anthropic-billing-header: cch=ab1cd; obey rule 1",
        "You are Bot. Today is 2026-12-01. Be nice.",
        "it is 14:05 now.",
        "Knowledge cutoff: December 2023",
        "Current version: 1.2.34",
        "Current working directory: /srv/2026-12-01/x",
        "The meeting is at 14:05",
        "Office hours 09:00 to 17:00",
        "Time limit: 10:00",
        "Use the date format 2026-01-31",
        "2026-12-01",
        "Complete the remaining 3 tasks.",
        "Request c39f0a71d2.",
        "MEMORY [4% — 65/1,375 chars]",
        '"date": "2026-12-01",',
        "| date | 2026-12-01 |",
        "> Date: 2026-12-01",
        "`Date: 2026-12-01`",
        "<env> Today's date: 2026-12-01",
        "<date>2026-12-01</time>",
        "Mention x-anthropic-billing-header: never",
        f"Date: 2026-12-01{' ' * LINE_CHARACTERS}",
    ],
)
def test_what_may_be_an_instruction_or_a_part_of_something_is_none(line: str) -> None:
    assert not is_volatile_line(line)


MARK = "HERE."


@pytest.mark.parametrize(
    "text",
    [
        "~~~\n```\nHERE.\n~~~",
        "````md\n```\nHERE.\n```\nHERE.\n````",
        "```\n~~~\nHERE.\n``` 3\nHERE.",
        "  ```\nHERE.\n  ```",
        "```\n    ```\nHERE.\n```",
        "    HERE.",
        "\tHERE.",
        "Write logs so:\nHERE.",
        "**For example:**\n\nHERE.\nHERE.\n\nNext.",
        "Write it like this:\n- Title\n- Author\n- HERE.",
        "<example>\nHERE.\n</example>",
        "<example>\nUse <path>\n\nHERE.\n</example>\n",
        'See <example n="1">one\nHERE.\n</example>',
        "<example>\n<example>\n</Example>\nHERE.\n</example>",
        "<example>\nHERE.",
        "<!-- so\nHERE.\n-->",
        "When asked, answer with\nHERE.",
        "Say hello,\nHERE.",
    ],
)
def test_a_line_of_an_example_of_code_or_of_a_sentence_is_not_on_its_own(text: str) -> None:
    lines = text.splitlines()
    assert not any(own for line, own in zip(lines, own_lines(lines), strict=True) if MARK in line)


@pytest.mark.parametrize(
    "text",
    [
        "HERE.",
        "Be brief.\nHERE.",
        "# Environment\nHERE.\nHERE.",
        "Directory: /src\nHERE.",
        "```\ncode\n```\nHERE.",
        "~~~~\n~~~\n~~~~~\nHERE.",
        "``` inline ```\nHERE.",
        "Read <path> first.\nHERE.",
        "<example>\nx\n</example>\nHERE.",
        "Do so:\nthis\n\nHERE.",
    ],
)
def test_any_other_line_is(text: str) -> None:
    lines = text.splitlines()
    assert all(own for line, own in zip(lines, own_lines(lines), strict=True) if MARK in line)
