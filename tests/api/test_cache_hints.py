"""What clients say about caching: which cuts are to stay and for how long, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from anchorline.api.cache_hints import CacheHints, CacheMark
from anchorline.api.messages import parse_messages
from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.errors import RequestError
from tests.api.support import chat
from tests.api.test_messages import FIND, USER, WIDE, call, result, text

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
FIVE_MINUTES, ONE_HOUR, ONE_DAY = 300.0, 3600.0, 86_400.0
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look"}}
SYSTEM = {"role": "system", "content": "s"}


def asked(marks: tuple[CacheMark, ...]) -> list[tuple[int, float]]:
    return [(mark.messages, mark.ttl_seconds) for mark in marks]


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("fields", "marks"),
    [
        ({}, []),
        ({"cache_control": HOUR["cache_control"]}, [(3, ONE_HOUR)]),
        ({"system": [text("s", **MARK)]}, [(0, FIVE_MINUTES)]),
        ({"tools": [FIND | HOUR], "system": [text("s", **MARK)]}, [(0, ONE_HOUR), (0, FIVE_MINUTES)]),
        ({"messages": [user(text("a", **MARK)), USER]}, [(2, FIVE_MINUTES)]),
        (
            {"messages": [user(result("a", content=[text("a", **HOUR)]), result("b", **MARK)), USER]},
            [(3, ONE_HOUR), (3, FIVE_MINUTES)],
        ),
        ({"messages": [USER, user(text("a", **MARK))], "cache_control": MARK["cache_control"]}, [(3, FIVE_MINUTES)]),
        ({"messages": [user(text("a", cache_control=None))]}, []),
        (
            {"tools": [FIND | {"cache_control": {"type": "ephemeral", "ttl": None, "scope": "global"}}]},
            [(0, FIVE_MINUTES)],
        ),
    ],
)
def test_marks_of_a_messages_request(fields: dict[str, Any], marks: list[tuple[int, float]]) -> None:
    """Two results in one message of the request are two messages of the prompt."""
    body = {"system": "s", "messages": [USER, USER]} | fields
    assert asked(call(**body).chat.cache.marks) == marks


@pytest.mark.parametrize(
    ("fields", "marks"),
    [
        ({}, []),
        ({"messages": [SYSTEM, user(text("a", **MARK)), USER]}, [(2, FIVE_MINUTES)]),
        ({"messages": [SYSTEM | HOUR, USER | MARK]}, [(1, ONE_HOUR), (2, FIVE_MINUTES)]),
        (
            {"tools": [LOOK | HOUR, {"type": "function", "function": {"name": "see", **MARK}}]},
            [(0, ONE_HOUR), (0, FIVE_MINUTES)],
        ),
        ({"prompt_cache_retention": "24h"}, [(2, ONE_DAY)]),
        ({"prompt_cache_retention": "in_memory"}, []),
        ({"prompt_cache_retention": "in-memory"}, []),
        ({"messages": [SYSTEM | MARK, USER], "prompt_cache_retention": "24h"}, [(1, FIVE_MINUTES), (2, ONE_DAY)]),
    ],
)
def test_marks_of_a_chat(fields: dict[str, Any], marks: list[tuple[int, float]]) -> None:
    assert asked(chat(**{"messages": [SYSTEM, USER], **fields}).cache.marks) == marks


def test_a_key_names_the_conversation() -> None:
    assert chat(prompt_cache_key="k").cache == CacheHints(conversation="k")
    for nothing in ("", None):
        assert chat(prompt_cache_key=nothing).cache == CacheHints()


FIVE = [user(*(text("a", **MARK) for _ in range(5)))]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": FIVE}, "messages[0].content[4].cache_control"),
        (
            {"system": [text("s", **MARK)], "messages": [user(*FIVE[0]["content"][:4])]},
            "messages[0].content[3].cache_control",
        ),
        ({"messages": [user(*FIVE[0]["content"][:4]), USER], "cache_control": MARK["cache_control"]}, "cache_control"),
        (
            {"messages": [user(text("a", cache_control={"type": "ephemeral", "ttl": "2h"}))]},
            "messages[0].content[0].cache_control.ttl",
        ),
        (
            {"messages": [user(text("a", cache_control={"type": "ephemeral", "ttl": 300}))]},
            "messages[0].content[0].cache_control.ttl",
        ),
        (
            {"messages": [user(text("a", cache_control={"type": "forever"}))]},
            "messages[0].content[0].cache_control.type",
        ),
        ({"messages": [user(text("a", cache_control="5m"))]}, "messages[0].content[0].cache_control"),
        ({"tools": [FIND | MARK], "system": [text("s", **HOUR)]}, "system[0].cache_control.ttl"),
        ({"system": [text("s", **MARK)], "cache_control": HOUR["cache_control"]}, "cache_control.ttl"),
        (
            {"messages": [user(result("a", content=[text("a", cache_control=1)]))]},
            "messages[0].content[0].content[0].cache_control",
        ),
    ],
)
def test_a_mark_of_a_messages_request_that_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        call(**fields)
    assert caught.value.field == field
    assert field.removesuffix(".type") in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": FIVE}, "messages[0].content[4].cache_control"),
        ({"messages": [USER | {"cache_control": []}]}, "messages[0].cache_control"),
        ({"messages": [SYSTEM | MARK, USER | HOUR]}, "messages[1].cache_control.ttl"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "cache_control": {}}}]},
            "tools[0].function.cache_control.type",
        ),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ({"prompt_cache_retention": 24}, "prompt_cache_retention"),
        ({"prompt_cache_key": 1}, "prompt_cache_key"),
        ({"prompt_cache_key": "k" * 513}, "prompt_cache_key"),
    ],
)
def test_a_hint_of_a_chat_that_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.field == field


def test_a_key_may_be_as_long_as_the_limit_that_a_refusal_names() -> None:
    assert chat(prompt_cache_key="k" * 512).cache.conversation == "k" * 512
    with pytest.raises(RequestError, match=r"at most 512 are allowed \(--max-cache-key\)"):
        chat(prompt_cache_key="k" * 513)


PROMPT = Prompt(
    tokens=np.arange(50, dtype=np.int32),
    cuts=(
        Cut(20, CutKind.HEAD, 1),
        Cut(30, CutKind.MESSAGE, 2),
        Cut(40, CutKind.MESSAGE, 3),
        Cut(45, CutKind.GENERATION, 4),
    ),
    message_starts=(0, 0, 20, 30, 40),
)
"""Two system messages, then three others, and a generation prompt."""


def wishes(prompt: Prompt, *marks: tuple[int, float]) -> list[tuple[int, float]]:
    hints = CacheHints(marks=tuple(CacheMark(messages=count, ttl_seconds=seconds) for count, seconds in marks))
    return [(wish.position, wish.ttl_seconds) for wish in hints.complete(prompt).pin_wishes]


@pytest.mark.parametrize(("messages", "position"), [(0, 20), (1, 20), (2, 20), (3, 30), (4, 40), (5, 45), (6, 45)])
def test_a_mark_is_a_wish_at_the_end_of_its_message_or_of_the_head(messages: int, position: int) -> None:
    """A last message that is continued stands behind the generation prompt, where there is no cut."""
    assert wishes(PROMPT, (messages, FIVE_MINUTES)) == [(position, FIVE_MINUTES)]


def test_of_wishes_for_one_cut_the_longest_holds() -> None:
    given = [(0, ONE_HOUR), (2, FIVE_MINUTES), (5, FIVE_MINUTES), (5, ONE_DAY)]
    assert wishes(PROMPT, *given) == [(20, ONE_HOUR), (45, ONE_DAY)]


def test_a_mark_before_every_known_cut_is_no_wish() -> None:
    """As where a template takes no system prompt, and where a prompt has no messages at all."""
    headless = Prompt(tokens=PROMPT.tokens, cuts=PROMPT.cuts[1:], message_starts=(0, 0, 0, 30, 40))
    assert wishes(headless, (0, ONE_HOUR), (2, ONE_HOUR), (3, FIVE_MINUTES)) == [(30, FIVE_MINUTES)]
    assert wishes(Prompt(tokens=PROMPT.tokens), (1, ONE_HOUR)) == []


def test_hints_change_nothing_else_of_a_prompt() -> None:
    plain = CacheHints().complete(PROMPT)
    assert plain == PROMPT
    named = CacheHints(conversation="k").complete(PROMPT)
    assert named.conversation == "k"
    assert (named.tokens is PROMPT.tokens, named.cuts) == (True, PROMPT.cuts)


def test_marks_change_nothing_of_what_is_rendered() -> None:
    marked = {
        "max_tokens": 5,
        "tools": [FIND | HOUR],
        "system": [text("s", **HOUR)],
        "messages": [user(text("a", **MARK))],
    }
    plain = {"max_tokens": 5, "tools": [FIND], "system": "s", "messages": [user(text("a"))]}
    with_marks, without = (parse_messages(json.dumps(body).encode(), context=WIDE) for body in (marked, plain))
    assert with_marks.chat.prompt == without.chat.prompt
    assert (len(with_marks.chat.cache.marks), without.chat.cache) == (3, CacheHints())
