"""What is asked of the cache: bodies, names and lifetimes, and where an anchor ends."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from anchorline.api.anchors import AnchorCall, anchor_position, parse_anchor, parse_change, parse_clear
from anchorline.cache.prompt import Cut, CutKind, Prompt
from anchorline.errors import RequestError
from anchorline.limits import Limits
from tests.api.support import MESSAGES

LIMITS = Limits(pin_name=5, pin_ttl_seconds=100_000)
SYSTEM = {"role": "system", "content": "You help."}
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def parse(**fields: Any) -> AnchorCall:
    return parse_anchor(json.dumps({"messages": [SYSTEM], **fields}).encode(), limits=LIMITS)


@pytest.mark.parametrize(
    ("ttl", "seconds"), [("5m", 300), ("1h", 3600), ("1d", 86_400), ("30s", 30), (1.5, 1.5), (60, 60), (None, None)]
)
def test_lifetimes(ttl: object, seconds: float | None) -> None:
    assert parse(ttl=ttl).ttl_seconds == seconds


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"messages": []}, "messages", "messages or tools"),
        ({"ttl": 0}, "ttl", "--max-pin-ttl"),
        ({"ttl": "2d"}, "ttl", "--max-pin-ttl"),
        ({"ttl": "0s"}, "ttl", "--max-pin-ttl"),
        ({"ttl": "soon"}, "ttl", '"1h"'),
        ({"ttl": True}, "ttl", "a number"),
        ({"name": ""}, "name", "--max-pin-name"),
        ({"name": "a name"}, "name", "--max-pin-name"),
        ({"name": 7}, "name", "a string"),
        ({"tools": [{"type": "other"}]}, "tools[0].type", "function"),
    ],
)
def test_unusable_fields_are_named(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        parse(**fields)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([SYSTEM], 2),
        ([*MESSAGES], 1),
        ([*MESSAGES, {"role": "assistant", "content": "Yes."}], 3),
        ([*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [{}]}, {"role": "tool", "content": "x"}], 3),
    ],
)
def test_where_no_reply_can_follow_a_message_does(messages: list[dict[str, Any]], shown: int) -> None:
    call = parse(messages=messages)
    assert (call.messages, len(call.prompt.messages)) == (len(messages), shown)
    assert call.prompt.add_generation_prompt
    assert not call.prompt.continue_final


def test_tools_alone_make_a_prompt() -> None:
    call = parse(messages=[], tools=TOOLS)
    assert (call.messages, call.prompt.tools) == (0, TOOLS)


def test_an_anchor_ends_at_the_last_cut_of_its_messages() -> None:
    cuts = (Cut(3, CutKind.HEAD, 0), Cut(5, CutKind.MESSAGE, 1), Cut(7, CutKind.GENERATION, 2))
    prompt = Prompt(tokens=np.zeros(9, dtype=np.int32), cuts=cuts)
    assert [anchor_position(prompt, messages) for messages in (1, 2, 3)] == [3, 5, 7]
    bare = Prompt(tokens=prompt.tokens, cuts=(Cut(2, CutKind.HEAD), Cut(5, CutKind.MESSAGE, 0)))
    assert anchor_position(bare, 0) == 2
    with pytest.raises(RequestError) as refused:
        anchor_position(Prompt(tokens=prompt.tokens), 1)
    assert refused.value.code == "no_anchor"


def test_a_change_tells_an_absent_lifetime_from_one_without_end() -> None:
    assert parse_change(b"{}", limits=LIMITS).lifetime is None
    forever = parse_change(b'{"ttl": null}', limits=LIMITS).lifetime
    assert forever is not None
    assert forever.seconds is None


@pytest.mark.parametrize(("raw", "pins"), [(b"", False), (b"{}", False), (b'{"pins": true}', True)])
def test_clearing_spares_pins_unless_told_otherwise(raw: bytes, pins: bool) -> None:
    assert parse_clear(raw) is pins
