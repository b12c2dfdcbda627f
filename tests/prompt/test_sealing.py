"""What a next request begins with is known once a turn has ended, in every family's format."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from anchorline.cache.prompt import CutKind, Prompt
from anchorline.output.formats import FORMATS
from anchorline.prompt.sealing import continuations, turn_message
from tests.prompt.speaking import TOOLS, Message, Speaker, ids_of, results_of, rewritten
from tests.prompt.support import system, user
from tests.support.families import BUILT_IN, FAMILIES, Call

START: list[Message] = [system("be brief"), user("what is in the file?")]
READ: Call = ("read_file", {"path": "the abc.txt", "line": 7})
LIST: Call = ("list_files", {"path": "/", "exact": True})


@pytest.fixture(params=[*sorted(FORMATS), *BUILT_IN])
def speaker(request: pytest.FixtureRequest) -> Speaker:
    return Speaker({**FAMILIES, **BUILT_IN}[request.param])


def reasoning_of(speaker: Speaker) -> str:
    return "Hm, the abc." if speaker.family.shows_reasoning or speaker.family.opens_reasoning else ""


def guess(speaker: Speaker, messages: Sequence[Message]) -> Prompt:
    """What is expected of the request behind the turn that was just heard."""
    assert speaker.turn is not None
    said = speaker.turn.said
    return speaker.builder.beginning([*messages, turn_message(said)], *continuations(said), tools=TOOLS)


def rest(speaker: Speaker, prompt: list[int], guessed: Prompt) -> str:
    """The text of a prompt behind what was guessed of it."""
    assert prompt[: len(guessed)] == guessed.tokens.tolist()
    return b"".join(map(speaker.tokenizer.piece, prompt[len(guessed) :])).decode()


def test_behind_a_call_only_its_result_is_left(speaker: Speaker) -> None:
    known, message = speaker.answer(START, reasoning=reasoning_of(speaker), calls=[READ])
    guessed = guess(speaker, START)
    asked = ids_of(speaker.chat([*START, rewritten(message), *results_of(message, "It rains.")]))
    assert asked[: len(known)] == known
    assert len(guessed) > len(known)
    assert rest(speaker, asked, guessed).startswith("It rains.")


def test_behind_several_calls_the_first_result_is_where_it_ends(speaker: Speaker) -> None:
    if not speaker.family.parallel:
        pytest.skip("it makes one call at a time")
    _, message = speaker.answer(START, reasoning=reasoning_of(speaker), calls=[READ, LIST])
    asked = ids_of(speaker.chat([*START, rewritten(message), *results_of(message, "It rains.", "the abc")]))
    assert rest(speaker, asked, guess(speaker, START)).startswith("It rains.")


def test_behind_an_answer_only_the_users_words_are_left(speaker: Speaker) -> None:
    """Also where the template drops the thoughts of the whole turn now."""
    _, called = speaker.answer(START, reasoning=reasoning_of(speaker), calls=[READ])
    history = [*START, rewritten(called), *results_of(called, "It rains.")]
    _, said = speaker.answer(history, reasoning=reasoning_of(speaker), content="Rain.")
    guessed = guess(speaker, history)
    asked = speaker.chat([*history, {"role": "assistant", "content": said["content"]}, user("And then?")])
    assert rest(speaker, ids_of(asked), guessed).startswith("And then?")


def test_a_guess_is_marked_as_one_and_cut_at_its_head_alone(speaker: Speaker) -> None:
    speaker.answer(START, reasoning=reasoning_of(speaker), calls=[READ])
    guessed, asked = guess(speaker, START), speaker.chat(START).prompt
    assert guessed.guessed
    assert not asked.guessed
    assert guessed.cuts == tuple(cut for cut in asked.cuts if cut.kind is CutKind.HEAD)
    assert guessed.head_position == asked.head_position
