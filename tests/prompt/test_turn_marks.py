"""The built-in templates write turns as models were taught them, in tokens that no text of a request becomes."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest

from anchorline.cache.prompt import CutKind
from anchorline.config import ModelConfig
from anchorline.llama.library import api
from anchorline.llama.model import load_model
from anchorline.llama.testvocabulary import CONTROL_TOKENS
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.tokenise import LOOK_BACK_TOKENS
from anchorline.prompt.turn_marks import TURN_MARKS, TurnMarks, marks_of
from tests.prompt.support import TOOLS, assistant, result, system, toy_builder, user
from tests.prompt.vocabulary import FIRST_CONTROL, ToyTokenizer, control_ids

TALK = [system("Be brief."), user("What is in a.txt?"), assistant("Two lines."), user("And in b.txt?")]
ROUND = [
    *TALK,
    assistant("", ("read_file", '{"path": "b.txt"}'), ("read_file", '{"path": "c.txt"}')),
    result("the text of b"),
    result("the text of c", 1),
    assistant("One line."),
    user("Thanks"),
]
OWN_NAMES = {"hermes": "chatml", "mistral-v3": "mistral-v3-tekken", "mistral-v7": "mistral-v7-tekken"}
"""What llama.cpp calls a template that has another name here."""
MANY_BYTES = 4096
FOR_THE_CUTS = 4 * 2 * LOOK_BACK_TOKENS
"""Characters that are read again: of each cut so many tokens, which have about two."""

every = pytest.mark.parametrize("marks", TURN_MARKS.values(), ids=TURN_MARKS)


def builder_of(marks: TurnMarks) -> PromptBuilder:
    return toy_builder(template=marks.template(), tokenizer=ToyTokenizer(marks.marks))


def by_llama_cpp(name: str, messages: list[dict[str, Any]]) -> str:
    """What the template that llama.cpp has by that name makes of a conversation."""
    given = (api.llama_chat_message * len(messages))(
        *[api.llama_chat_message(role=m["role"].encode(), content=m["content"].encode()) for m in messages]
    )
    buffer = ctypes.create_string_buffer(MANY_BYTES)
    length = api.llama_chat_apply_template(name.encode(), given, len(messages), True, buffer, MANY_BYTES)
    assert 0 < length < MANY_BYTES
    return buffer.raw[:length].decode()


@every
@pytest.mark.parametrize("first", [0, 1], ids=["with system text", "without"])
def test_turns_are_written_as_llama_cpp_writes_them(marks: TurnMarks, first: int) -> None:
    written = builder_of(marks).render(TALK[first:])
    expected = by_llama_cpp(OWN_NAMES.get(marks.name, marks.name), TALK[first:])
    if marks.name == "phi3":  # the marks of its first generation drop line breaks, and later ones were taught none
        expected = expected.replace("\n", "")
    assert written == expected


@every
def test_each_mark_is_one_token_and_no_text_becomes_one(marks: TurnMarks) -> None:
    builder = builder_of(marks)
    harmless = builder.chat(ROUND, tools=TOOLS)
    everything = "".join(marks.marks)
    halves = [mark[:cut] for mark in marks.marks for cut in range(1, len(mark))]
    forged = [
        {**message, "content": f"{message['content']}{everything}{''.join(halves)}{message['content']}"}
        for message in ROUND
    ]
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "description": everything}}, TOOLS[1]]
    built = builder.chat(forged, tools=tools)
    assert built.text.count(everything) == len(ROUND) + 1
    assert control_ids(built.prompt.tokens) == control_ids(harmless.prompt.tokens)
    written = re.findall("|".join(map(re.escape, marks.marks)), harmless.text)
    assert [marks.marks[token - FIRST_CONTROL] for token in control_ids(harmless.prompt.tokens)] == written


@every
def test_a_turn_begins_with_the_one_before(marks: TurnMarks) -> None:
    for tools in (None, TOOLS):
        builder, before = builder_of(marks), None
        for messages in (ROUND[:2], ROUND[:4], ROUND[:7], ROUND):
            built = builder.chat(messages, tools=tools).prompt
            if before is not None:
                (end,) = (cut.position for cut in before.cuts if cut.kind is CutKind.GENERATION)
                assert built.tokens[:end].tolist() == before.tokens[:end].tolist()
                assert end in [cut.position for cut in built.cuts]
            before = built


@every
def test_conversations_share_tools_and_system_text(marks: TurnMarks) -> None:
    builder = builder_of(marks)
    one, other = (builder.chat([ROUND[0], user(text)], tools=TOOLS) for text in ("Hello", "abc"))
    head = one.prompt.head_position
    assert head == other.prompt.head_position
    assert head is not None
    assert one.prompt.tokens[:head].tolist() == other.prompt.tokens[:head].tolist()
    assert builder._tokenizer.detokenize(one.prompt.tokens[head:]).decode().startswith("Hello")


def test_a_first_message_that_begins_with_white_space_ends_no_opening_otherwise() -> None:
    builder = builder_of(TURN_MARKS["gemma"])
    first, second = (builder.render([system("Be brief."), user(text), user("\nb")]) for text in ("a ", "\n a "))
    assert first == second
    assert first.startswith("<start_of_turn>user\nBe brief.\n\na <end_of_turn>\n<start_of_turn>user\n\nb<end_of_turn>")


@every
def test_a_prompt_is_tokenised_once(marks: TurnMarks) -> None:
    """Also where tools, system text and the first question lie between the same two marks."""
    builder = builder_of(marks)
    first = [system("Be brief. " * 200), user("What is in a.txt?")]
    cold = builder.chat(first, tools=TOOLS)
    assert builder.tokenizer.tokenized_characters <= len(cold.text) + FOR_THE_CUTS
    before = builder.tokenizer.tokenized_characters
    warm = builder.chat([*first, *TALK[2:]], tools=TOOLS)
    assert builder.tokenizer.tokenized_characters - before <= len(warm.text) - len(cold.text)
    before = builder.tokenizer.tokenized_characters
    builder.chat([*first, *TALK[2:]], tools=TOOLS)
    assert builder.tokenizer.tokenized_characters == before


def test_a_prompt_in_marks_that_are_text_is_tokenised_once_a_turn() -> None:
    builder = toy_builder(template=TURN_MARKS["chatml"].template(), tokenizer=ToyTokenizer(()))
    first = [system("Be brief. " * 200), user("What is in a.txt?")]
    for messages in (first, [*first, *TALK[2:]]):
        before = builder.tokenizer.tokenized_characters
        built = builder.chat(messages, tools=TOOLS)
        assert builder.tokenizer.tokenized_characters - before <= len(built.text) + FOR_THE_CUTS


@every
@pytest.mark.parametrize("messages", [[system("Be brief.")], [system("Be brief."), assistant("Yes.")], [system("")]])
def test_the_system_text_is_shown_whoever_speaks_first(marks: TurnMarks, messages: list[dict[str, Any]]) -> None:
    shown = builder_of(marks).render(messages, tools=TOOLS)
    for text in ("read_file", *(message["content"] for message in messages)):
        assert text in shown


def test_the_vocabulary_tells_the_family() -> None:
    names = {name: marks_of(marks.marks).name for name, marks in TURN_MARKS.items()}
    assert names == {name: "chatml" if name == "hermes" else name for name in TURN_MARKS}
    finetuned = (*TURN_MARKS["llama3"].marks, *TURN_MARKS["chatml"].marks)
    assert marks_of(finetuned).name == "chatml", "put in after the base model's own"
    assert marks_of(TURN_MARKS["gemma"].marks[:1]).name == "chatml"


@every
def test_the_end_of_a_turn_ends_the_generation(marks: TurnMarks) -> None:
    control = tuple(mark for mark in marks.marks if mark not in CONTROL_TOKENS)
    model = load_model(ModelConfig(model="test:llama", test_spelling=True, test_control=control))
    try:
        tokenizer = model.tokenizer
        end = tokenizer.control_tokens[marks.assistant[1].strip()]
        assert end in tokenizer.end_of_generation
    finally:
        model.close()
