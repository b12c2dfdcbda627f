"""Conversations in which the model says the same more than once: one remembered turn stands for all of these."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.prompt.builder import BuiltPrompt
from anchorline.prompt.splice import PLACES_PER_REQUEST
from anchorline.prompt.turns import PLACES_PER_TURN, Place
from tests.prompt.support import TOOLS, system, user
from tests.prompt.test_turns import Bench, extends


def converse(bench: Bench, replies: list[str], *, asked: int = 1) -> None:
    """Each prompt must have the text of one without a memo, and go on from the reply to the one before."""
    messages: list[dict[str, Any]] = [system("be brief")]
    before: BuiltPrompt | None = None
    reply: list[int] = []
    for number, text in enumerate(replies):
        messages.append(user(f"question {number}"))
        for _ in range(asked):
            built = bench.chat(*messages)
            assert built.text == bench.plain.render(messages, tools=TOOLS)
            assert before is None or extends(built, before, reply)
        before = built
        reply, message = bench.generate(text)
        messages.append(message)


@settings(deadline=None, max_examples=50)
@given(replies=st.lists(st.sampled_from(["the abc", "no", "done\n\nof it"]), max_size=7), asked=st.integers(1, 2))
def test_equal_turns_stand_each_in_its_own_place(replies: list[str], asked: int) -> None:
    converse(Bench(), replies, asked=asked)


def test_conversations_may_share_a_turn() -> None:
    bench = Bench()
    for replies in (["the abc"] * 3, ["no", "the abc"], ["the abc"] * 4):
        converse(bench, replies)


def test_more_equal_turns_than_may_be_looked_for_at_once_keep_their_places() -> None:
    converse(Bench(), ["the abc"] * (PLACES_PER_REQUEST + 4))


def test_a_turn_keeps_few_places() -> None:
    bench = Bench()
    bench.generate("the abc")
    turn = bench.memo.find("", {"role": "assistant", "content": "the abc"}, asked=b"")
    assert turn is not None
    places = [Place(None, index, b"") for index in range(PLACES_PER_TURN + 2)]
    for index, place in enumerate(places):
        turn.note(index, place)
    turn.note(5, places[0])
    assert turn.places == {**dict(list(enumerate(places))[2:]), 5: places[0]}
