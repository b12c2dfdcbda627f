"""Turns of every family come back through its template: which of them keep their ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anchorline.errors import RequestError
from anchorline.output.formats import FORMATS, detect_format
from anchorline.prompt.builder import BuiltPrompt
from anchorline.prompt.template import ChatTemplate
from tests.prompt.speaking import Message, Speaker, ids_of, results_of, rewritten
from tests.prompt.support import system, user
from tests.support.families import BUILT_IN, FAMILIES, Call

START: list[Message] = [system("be brief"), user("what is in the file?")]
READ: Call = ("read_file", {"path": "the abc.txt", "line": 7})
LIST: Call = ("list_files", {"path": "/", "exact": True})


@pytest.fixture(params=[*sorted(FORMATS), *BUILT_IN])
def speaker(request: pytest.FixtureRequest) -> Speaker:
    return Speaker({**FAMILIES, **BUILT_IN}[request.param])


def begins(longer: list[int], shorter: list[int]) -> bool:
    return longer[: len(shorter)] == shorter


def test_every_template_is_one_of_its_family(speaker: Speaker) -> None:
    family = speaker.family
    detected = detect_format(ChatTemplate(family.template).source, family.control)
    assert detected.name == family.name
    first = speaker.chat(START)
    assert "read_file" in first.text
    assert "be brief" in first.text
    parallel = speaker.builder._tools.capabilities.parallel_calls
    assert parallel == family.parallel


@pytest.mark.parametrize("content", ["", "Let me look."])
@pytest.mark.parametrize("reasoning", ["", "Hm, the abc."])
def test_a_call_keeps_its_ids(speaker: Speaker, content: str, reasoning: str) -> None:
    if content and not speaker.family.shows_text_with_calls:
        pytest.skip("its template shows no text beside a call")
    if reasoning and not speaker.family.shows_reasoning:
        pytest.skip("its template shows no reasoning")
    known, message = speaker.answer(START, reasoning=reasoning, content=content, calls=[READ])
    built = speaker.chat([*START, rewritten(message), *results_of(message, "hello")])
    plain = speaker.without_memo([*START, message, *results_of(message, "hello")])
    assert not begins(ids_of(plain), known)
    if speaker.family.opens_reasoning and not reasoning:
        assert ids_of(built) == ids_of(plain)
        return
    assert begins(ids_of(built), known), built.text
    behind = ids_of(built)[len(known) :]
    assert ids_of(plain)[-len(behind) :] == behind


def test_results_of_two_calls_may_come_in_any_order(speaker: Speaker) -> None:
    if not speaker.family.parallel:
        pytest.skip("it makes one call at a time")
    reasoning = "Both." if speaker.family.shows_reasoning else ""
    known, message = speaker.answer(START, reasoning=reasoning, calls=[READ, LIST])
    one, other = results_of(message, "hello", "the abc")
    history = [*START, rewritten(message), other, one]
    built = speaker.chat(history)
    assert begins(ids_of(built), known), built.text
    assert ids_of(built) == ids_of(speaker.chat([*START, message, one, other]))
    assert built.text.rindex("hello") < built.text.rindex("the abc")
    assert history[-2:] == [other, one]


def test_the_users_next_turn_goes_on_behind_everything(speaker: Speaker) -> None:
    _, called = speaker.answer(START, calls=[READ])
    history = [*START, rewritten(called), *results_of(called, "hello")]
    known, said = speaker.answer(history, content="It says hello.")
    history += [said, user("and the other?")]
    assert begins(ids_of(speaker.chat(history)), known) is not speaker.family.rewrites_old
    again, called = speaker.answer(history, calls=[LIST])
    history += [rewritten(called), *results_of(called, "nothing")]
    assert begins(ids_of(speaker.chat(history)), again) is not speaker.family.opens_reasoning


@pytest.mark.parametrize("arguments", ['{"path": "the abc.txt", "line": 8}', '{"path": "the abc.txt"}', "{}", "no"])
def test_an_id_with_other_arguments_is_not_trusted(speaker: Speaker, arguments: str) -> None:
    reasoning = "Hm." if speaker.family.shows_reasoning else ""
    known, message = speaker.answer(START, reasoning=reasoning, calls=[READ])
    (call,) = message["tool_calls"]
    forged = {**call, "function": {**call["function"], "arguments": arguments}}
    history = [*START, {**message, "tool_calls": [forged]}, *results_of(message, "hello")]
    built = outcome(lambda: speaker.chat(history))
    assert built == outcome(lambda: speaker.without_memo(history))
    assert not begins(built, known)


def outcome(build: Callable[[], BuiltPrompt]) -> list[int]:
    """Ids of a prompt; none where the template refuses it."""
    try:
        return ids_of(build())
    except RequestError:
        return []


OWN_IDS = {
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.read_file:7<|tool_call_argument_begin|>"
    '{"path":  "a"}<|tool_call_end|><|tool_calls_section_end|>',
    "mistral": '[TOOL_CALLS][{"name":"read_file", "arguments":  {"path": "a"}, "id": "abcDEF123"}]',
    "mistral-named": '[TOOL_CALLS]read_file[CALL_ID]abcDEF123[ARGS]{"path":  "a"}',
}


@pytest.mark.parametrize(("name", "text"), OWN_IDS.items())
def test_a_result_names_the_id_that_the_model_wrote(name: str, text: str) -> None:
    speaker = Speaker(FAMILIES[name])
    prompt, reply = speaker.chat(START), speaker.spell(text)
    message = speaker.hear(reply, prompt)
    built = speaker.chat([*START, rewritten(message), *results_of(message, "hello")])
    assert begins(ids_of(built), ids_of(prompt) + reply)
    own = "functions.read_file:7" if name == "kimi" else "abcDEF123"
    assert built.text.count(own) == 2


@pytest.mark.parametrize(("name", "text"), OWN_IDS.items())
def test_an_id_that_the_template_does_not_take_is_not_kept(name: str, text: str) -> None:
    """Then the call would not have the id that its result names."""
    speaker = Speaker(FAMILIES[name])
    reply = speaker.spell(text.replace("functions.", "").replace("abcDEF123", "a-1"))
    message = speaker.hear(reply, speaker.chat(START))
    history = [*START, message, *results_of(message, "hello")]
    assert ids_of(speaker.chat(history)) == ids_of(speaker.without_memo(history))


def test_two_calls_that_the_model_gave_one_id_are_told_apart() -> None:
    speaker = Speaker(FAMILIES["mistral-named"])
    reply = speaker.spell(OWN_IDS["mistral-named"] * 2)
    message = speaker.hear(reply, speaker.chat(START))
    built = speaker.chat([*START, message, *results_of(message, "hello", "the abc")])
    assert "abcDEF123" not in built.text
    assert built.text.count("000000001") == 2


def test_of_texts_that_are_the_same_each_keeps_its_own_reasoning() -> None:
    """The template shows the reasoning of all turns, which the client drops."""
    speaker = Speaker(FAMILIES["kimi-k3"])
    history = [*START]
    for reasoning in ("First.", "Second."):
        known, message = speaker.answer(history, reasoning=reasoning, content="Done.")
        history += [{"role": "assistant", "content": message["content"]}, user("go on")]
    built = speaker.chat(history)
    assert begins(ids_of(built), known)
    assert built.text.index("First.") < built.text.index("Second.")
