"""The opt-in rewrites: what they move, that they lose nothing, and that a conversation stays one."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.bench.oracle import Oracle
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.canonical import canonical_tools
from anchorline.prompt.floating import CLOSING, OPENING, block, lift
from anchorline.prompt.rewrites import Rewriter, Rewrites
from anchorline.prompt.sealing import continuations, turn_message
from tests.prompt.speaking import TOOLS as SPOKEN_TOOLS
from tests.prompt.speaking import Speaker, ids_of, results_of, rewritten
from tests.prompt.support import NOON, TOOLS, assistant, result, system, toy_builder, user
from tests.support.families import FAMILIES

Message = dict[str, Any]

FLOAT = Rewrites(float_volatile=True)
CANONICAL = Rewrites(canonical_tools=True)
PIN = Rewrites(pin_date=True)
ALL = Rewrites(float_volatile=True, canonical_tools=True, pin_date=True)

DATED = "{{ strftime_now('%d %b %Y') }}\n{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
DATED += "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

LINES = st.sampled_from(
    [
        "Be brief.\n",
        "It is 14:05 now.\n",
        "Today: 2026-12-01\r\n",
        "12 requests so far.\n",
        "\n",
        "```\n",
        "Read first.",
    ]
)


def head(minute: int) -> Message:
    return system(f"Be brief.\nIt is 14:{minute:02} now.\nRead before you write.\n")


def agent_calls(turns: int = 4, rounds: int = 3) -> list[list[Message]]:
    """The requests of a conversation whose head shows the time: each turn a question, some tool rounds, an answer."""
    history: list[Message] = []
    calls: list[list[Message]] = []
    for turn in range(turns):
        history.append(user(f"Question {turn}: why does it fail?"))
        for step in range(rounds):
            calls.append([head(len(calls)), *history])
            history += [assistant("Let me see.", ("read_file", '{"path": "a"}')), result(f"def f_{turn}_{step}(): …")]
        calls.append([head(len(calls)), *history])
        history.append(assistant("It fails there."))
    return calls


def prefilled(builder: PromptBuilder, calls: list[list[Message]]) -> int:
    """Tokens that a perfect cache of these prompts prefills."""
    oracle = Oracle()
    return sum(oracle.cost(builder.chat(messages, tools=TOOLS).prompt.tokens) for messages in calls)


def floated(text: str) -> list[str]:
    """What stands in each block, in order."""
    return [part.partition(CLOSING)[0].strip() for part in text.split(OPENING)[1:]]


@given(st.lists(LINES, max_size=8), st.lists(LINES, min_size=1, max_size=3))
def test_without_a_flag_everything_is_rendered_as_sent(lines: list[str], said: list[str]) -> None:
    messages = [system("".join(lines)), *map(user, said)]
    text = toy_builder(rewrites=Rewrites()).chat(messages, tools=TOOLS).text
    for message in messages:
        assert message["content"].strip() in text
    assert OPENING not in text
    assert json.dumps(TOOLS[0])[:60] in text


@given(st.lists(LINES, max_size=8), st.lists(LINES, min_size=1, max_size=3))
def test_nothing_is_lost_but_by_being_moved(lines: list[str], said: list[str]) -> None:
    messages = [system("".join(lines)), *map(user, said)]
    lifted = lift(messages)
    kept, moved = lifted.messages[0]["content"].splitlines(keepends=True), list(lifted.lines)
    for line in messages[0]["content"].splitlines(keepends=True):
        if moved and moved[0] == line:
            moved.pop(0)
        elif kept:
            assert kept.pop(0).rstrip("\r\n") == line.rstrip("\r\n")
        else:
            assert line == "\n"
    assert kept == moved == []
    assert lifted.messages[1:] == messages[1:]
    rewriter = Rewriter(FLOAT, clock=lambda: NOON)
    *older, newest = rewriter.messages(messages, tenant="", remember=True).messages[1:]
    assert older == messages[1:-1]
    behind = f"\n\n{block(lifted.lines)}" if lifted.lines else ""
    assert newest == {**messages[-1], "content": messages[-1]["content"] + behind}


def test_with_nothing_to_rewrite_every_flag_leaves_the_prompt_as_it_is() -> None:
    messages = [system("Be brief.\nRead first."), user("Why?"), assistant("So."), user("And now?")]
    tools = canonical_tools(TOOLS)
    plain, rewritten = (toy_builder(rewrites=each).chat(messages, tools=tools) for each in (Rewrites(), ALL))
    assert plain.text == rewritten.text
    assert rewritten.rewriting.names == ()


def test_the_time_is_said_behind_the_newest_user_message() -> None:
    built = toy_builder(rewrites=FLOAT).chat([head(5), user("One?"), assistant("Yes."), user("Two?")])
    assert "Be brief.\nRead before you write." in built.text
    assert f"Two?\n\n{OPENING}It is 14:05 now.\n{CLOSING}<|im_end|>" in built.text
    assert built.rewriting.floated_lines == 1
    assert built.rewriting.floated_tokens == len(f"{OPENING}It is 14:05 now.\n{CLOSING}")


def test_every_prompt_of_a_conversation_begins_with_the_one_before() -> None:
    builder = toy_builder(rewrites=FLOAT)
    texts = [builder.chat(messages, tools=TOOLS).text for messages in agent_calls()]
    for before, after in pairwise(texts):
        assert after.startswith(before.removesuffix("<|im_start|>assistant\n"))


@given(st.integers(1, 4), st.integers(0, 2), st.lists(st.booleans(), min_size=12, max_size=12))
def test_a_conversation_goes_on_whatever_else_is_asked(turns: int, rounds: int, besides: list[bool]) -> None:
    """Titles of the same first question, and prompts that are only counted, come between."""
    builder = toy_builder(rewrites=FLOAT)
    texts: list[str] = []
    for number, messages in enumerate(agent_calls(turns, rounds)):
        if besides[number]:
            builder.chat([system("Name this.\nIt is 09:00 now."), messages[1]])
            builder.chat([head(50), *messages[1:]], generates=False)
        texts.append(builder.chat(messages, tools=TOOLS).text)
    for before, after in pairwise(texts):
        assert after.startswith(before.removesuffix("<|im_start|>assistant\n"))


def test_remembering_what_was_said_costs_least() -> None:
    calls = agent_calls()
    as_sent, forgetful, remembering = (
        prefilled(toy_builder(rewrites=each), calls)
        for each in (Rewrites(), Rewrites(float_volatile=True, memory_bytes=0), FLOAT)
    )
    steady = prefilled(toy_builder(), [[head(0), *messages[1:]] for messages in calls])
    assert remembering < forgetful < as_sent
    blocks = 4 * len(f"\n\n{OPENING}It is 14:05 now.\n{CLOSING}")
    assert remembering <= steady + blocks


def test_while_tools_work_the_time_is_that_of_the_question() -> None:
    builder = toy_builder(rewrites=FLOAT)
    first, second = agent_calls(turns=1, rounds=1)
    builder.chat(first)
    assert floated(builder.chat(second).text) == ["It is 14:00 now."]


def test_what_first_appears_while_tools_work_waits_for_the_user() -> None:
    """Nothing was said when the user spoke, and that stays as it is."""
    builder = toy_builder(rewrites=FLOAT)
    (_, *asked), (_, *loop) = agent_calls(turns=1, rounds=1)
    before = builder.chat([system("Be brief.\n"), *asked]).text
    after = builder.chat([system("Be brief.\nTokens remaining: 12\n"), *loop]).text
    assert after.startswith(before.removesuffix("<|im_start|>assistant\n"))
    told = builder.chat([system("Be brief.\nTokens remaining: 11\n"), *loop, assistant("So."), user("Go on.")])
    assert floated(told.text) == ["Tokens remaining: 11"]


@pytest.mark.parametrize(
    "behind", ["\nDate: 2026-12-01", "\n\nDate: 2026-12-01", "\r\nDate: 2026-12-01\nToday: 2026-12-01"]
)
def test_a_moved_last_line_leaves_nothing_behind(behind: str) -> None:
    assert lift([system(f"Be brief.{behind}"), user("?")]).messages == [system("Be brief."), user("?")]


def test_a_user_who_speaks_again_is_told_the_time_anew() -> None:
    builder = toy_builder(rewrites=FLOAT)
    builder.chat([head(1), user("Hello")])
    assert floated(builder.chat([head(9), user("Hello")]).text) == ["It is 14:09 now."]
    later = [head(10), user("Hello"), assistant("Hi."), user("Well?")]
    assert floated(builder.chat(later).text) == ["It is 14:09 now.", "It is 14:10 now."]


def test_what_only_asks_for_a_prompt_does_not_change_the_history() -> None:
    builder = toy_builder(rewrites=FLOAT)
    builder.chat([head(1), user("Hello")])
    builder.chat([head(2), user("Hello")], generates=False)
    later = [head(3), user("Hello"), assistant("Hi."), user("Well?")]
    assert floated(builder.chat(later).text)[0] == "It is 14:01 now."


def test_nobody_is_told_what_was_said_to_another_tenant() -> None:
    builder = toy_builder(rewrites=FLOAT)
    builder.chat([head(1), user("Hello")], tenant="a")
    later = [head(3), user("Hello"), assistant("Hi."), user("Well?")]
    assert floated(builder.chat(later, tenant="b").text) == ["It is 14:03 now."]


def test_a_generated_turn_keeps_its_ids_and_is_sealed_though_the_clock_goes_on() -> None:
    speaker = Speaker(FAMILIES["hermes"], rewrites=FLOAT)
    asked = [head(1), user("What is in it?")]
    live, called = speaker.answer(asked, calls=[("read_file", {"path": "a", "line": 7})])
    assert speaker.turn is not None
    said = speaker.turn.said
    history = [head(4), *asked[1:]]
    guessed = speaker.builder.beginning([*history, turn_message(said)], *continuations(said), tools=SPOKEN_TOOLS)
    then = ids_of(speaker.chat([head(9), *asked[1:], rewritten(called), *results_of(called, "It rains.")]))
    assert then[: len(live)] == live
    assert len(guessed) > len(live)
    assert then[: len(guessed)] == guessed.tokens.tolist()


def test_lines_of_examples_and_lines_that_no_user_message_could_take_stay() -> None:
    shown = system("Write logs so.\n~~~\n```\nDate: 2026-12-01\n~~~\nDate: 2026-12-02\n")
    assert lift([shown, user("?")]).lines == ("Date: 2026-12-02\n",)
    assert lift([shown, assistant("!")]).messages == [shown, assistant("!")]


@st.composite
def shuffled(draw: st.DrawFn, value: Any) -> Any:
    """``value`` with the keys of every object in some order; lists stay as they are."""
    if isinstance(value, dict):
        return {key: draw(shuffled(value[key])) for key in draw(st.permutations(sorted(value)))}
    return [draw(shuffled(item)) for item in value] if isinstance(value, list) else value


SCHEMA = {
    "type": "object",
    "$defs": {"b": {"enum": ["z", "a", 3]}, "a": {"type": "string", "default": {"y": 1, "x": [2, 1]}}},
    "properties": {"zeta": {"$ref": "#/$defs/b"}, "alpha": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}},
    "required": ["zeta", "alpha"],
    "additionalProperties": False,
}
MANY = [*TOOLS, {"type": "function", "function": {"name": "a_tool", "strict": True, "parameters": SCHEMA}}]


@given(st.data())
def test_tools_and_keys_in_any_order_make_one_prompt(data: st.DataObject) -> None:
    tools = data.draw(st.permutations(MANY).flatmap(lambda tools: shuffled(list(tools))))
    assert json.dumps(canonical_tools(tools)) == json.dumps(canonical_tools(MANY))


def test_canonical_tools_mean_the_same() -> None:
    def by_name(tools: list[dict[str, Any]]) -> dict[str, Any]:
        return {tool["function"]["name"]: tool for tool in tools}

    assert by_name(canonical_tools(MANY)) == by_name(MANY)  # lists are compared in order, objects without
    builder = toy_builder(rewrites=CANONICAL)
    forwards, backwards = (builder.chat([user("?")], tools=tools) for tools in (MANY, MANY[::-1]))
    assert forwards.text == backwards.text
    assert forwards.prompt.tool_fingerprint == backwards.prompt.tool_fingerprint
    assert forwards.rewriting.tools_sorted


class Calendar:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def calendar() -> Calendar:
    return Calendar()


def date_of(builder: PromptBuilder, *messages: Message, **options: Any) -> str:
    return builder.chat(messages, **options).text.partition("\n")[0]


def test_a_conversation_keeps_its_date_and_a_new_one_has_its_own(calendar: Calendar) -> None:
    builder = toy_builder(DATED, clock=calendar, rewrites=PIN)
    assert date_of(builder, user("Hello")) == "17 May 2024"
    calendar.now += timedelta(days=1)
    talk = (user("Hello"), assistant("Hi."), user("Still there?"))
    assert date_of(builder, *talk) == "17 May 2024"
    assert builder.chat(talk).rewriting.pinned_date == NOON
    assert date_of(builder, user("Good morning")) == "18 May 2024"
    assert date_of(builder, *talk, tenant="another") == "18 May 2024"
    assert date_of(builder, user("Hello")) == "18 May 2024"


def test_a_date_that_is_forgotten_or_not_pinned_is_that_of_today(calendar: Calendar) -> None:
    talk = (user("Hello"), assistant("Hi."), user("Still there?"))
    for rewrites in (Rewrites(), Rewrites(pin_date=True, memory_bytes=0)):
        builder = toy_builder(DATED, clock=calendar, rewrites=rewrites)
        date_of(builder, *talk)
        calendar.now += timedelta(days=1)
        assert date_of(builder, *talk) == f"{calendar.now:%d %b %Y}"


def test_where_no_date_is_shown_none_is_pinned(calendar: Calendar) -> None:
    builder = toy_builder(clock=calendar, rewrites=PIN)
    talk = (user("Hello"), assistant("Hi."), user("Still there?"))
    builder.chat(talk)
    assert builder.chat(talk).rewriting.names == ()
