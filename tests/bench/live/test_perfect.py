"""The oracle of a replay that has ended: by token ids where they can be had, else by bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from anchorline.bench.client import CallFailed
from anchorline.bench.live.perfect import AnsweredCall, OracleKind, SentPrompt, costs_of, perfect_costs
from anchorline.bench.live.protocols import CHAT, MESSAGES, WireProtocol
from anchorline.bench.oracle import Tokens, as_tokens
from tests.bench.live.bodies import Body, chat
from tests.bench.live.calls import measured


def sent(
    symbols: Sequence[int], at: float, end: float, *, tokens: int | None = None, reply: Sequence[int] = ()
) -> SentPrompt:
    return SentPrompt(
        symbols=as_tokens(list(symbols)),
        cuts=(),
        reply=as_tokens(reply),
        prompt_tokens=len(symbols) if tokens is None else tokens,
        sent_seconds=at,
        ended_seconds=end,
    )


def test_prompts_are_known_from_when_they_were_sent_whatever_their_order() -> None:
    assert costs_of([sent(range(30), 2, 3), sent(range(10), 0, 1)], at_cuts=False) == [20, 10]


def test_a_reply_is_known_once_it_has_ended() -> None:
    first = sent([1, 2, 3], 0, 5, reply=[4, 5])
    before, after = sent([1, 2, 3, 4, 5, 6], 4, 9), sent([1, 2, 3, 4, 5, 7], 6, 9)
    assert costs_of([first, before], at_cuts=False) == [3, 3]
    assert costs_of([first, after], at_cuts=False) == [3, 1]


def test_symbols_that_are_no_tokens_give_the_share_of_new_ones() -> None:
    assert costs_of([sent(range(50), 0, 1, tokens=200), sent(range(100), 2, 3, tokens=300)], at_cuts=False) == [
        200,
        150,
    ]


def test_a_prompt_costs_at_least_one_token() -> None:
    assert costs_of([sent(range(50), 0, 1, tokens=5), sent(range(50), 2, 3, tokens=5)], at_cuts=False) == [5, 1]


@dataclass(frozen=True)
class Letters:
    """A server that takes each letter of the last message for a token."""

    tells_replies: ClassVar[bool] = False
    tells_cuts: ClassVar[bool] = False

    def prompt(self, body: Mapping[str, Any]) -> tuple[Tokens, tuple[int, ...]]:
        text = body["messages"][-1]["content"]
        if text == "refuse":
            raise CallFailed("no", status=400)
        return as_tokens([ord(letter) for letter in text]), ()


def answered(body: Body, tokens: int, *, at: float, protocol: WireProtocol = CHAT) -> AnsweredCall:
    return AnsweredCall(protocol=protocol, body=body, measured=measured(tokens), sent_seconds=at, ended_seconds=at + 1)


def test_ids_are_used_where_the_server_tells_them() -> None:
    calls = [answered(chat("abc"), 3, at=0), answered(chat("abcde"), 5, at=2)]
    assert perfect_costs(calls, Letters(), at_cuts=False) == (OracleKind.TOKEN_IDS, [3, 2])


@pytest.mark.parametrize(
    ("calls", "at_cuts"),
    [
        ([answered(chat("abc"), 3, at=0, protocol=MESSAGES)], False),
        ([answered(chat("abc"), 4, at=0)], False),
        ([answered(chat("refuse"), 6, at=0)], False),
        ([answered(chat("abc"), 3, at=0)], True),
    ],
    ids=["another protocol", "another number of tokens", "a refusal", "no cuts"],
)
def test_else_bytes_are_for_the_whole_replay(calls: list[AnsweredCall], at_cuts: bool) -> None:
    known = answered(chat("ab"), 2, at=8)
    kind, costs = perfect_costs([*calls, known], Letters(), at_cuts=at_cuts)
    assert kind is OracleKind.BYTES
    assert costs[0] == calls[0].measured.counts.prompt_tokens


def test_a_server_that_tells_no_ids() -> None:
    calls = [answered(chat("list the files"), 1000, at=0), answered(chat("list the files", "read one"), 1010, at=2)]
    kind, (first, second) = perfect_costs(calls, None, at_cuts=False)
    assert (kind, first) == (OracleKind.BYTES, 1000)
    assert 1 <= second < 20
