"""What a reply may be under each kind of constraint."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from anchorline.constraint.compiler import no_call_tags
from anchorline.constraint.spec import (
    Choices,
    ConstraintSpec,
    ForcedCalls,
    Grammar,
    OfferedCalls,
    Reasoning,
    Regex,
    Tool,
)
from anchorline.errors import ConstraintFailure
from anchorline.llama.interface import TokenConstraint
from anchorline.output.events import TextDelta, ToolCallStarted
from anchorline.output.format import THINK_TAGS, CallMode, CallTag, ReasoningTags, ReplyContext
from anchorline.output.formats import FORMATS
from tests.constraint.support import END, byte_compiler, compiled, schema, takes, walk

COMPILER = byte_compiler()
ROOM = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "view": {"enum": ["sea", "yard"]}},
    "required": ["number", "view"],
    "additionalProperties": False,
}
GOOD = '{"number": 7, "view": "sea"}'
FREE_ARGUMENTS = {"type": "object"}
BOOK = Tool(name="book", arguments=schema(ROOM))
LOOK = Tool(name="look", arguments=schema({"type": "object", "properties": {}, "additionalProperties": False}))


def hermes(tool: str) -> CallTag:
    return CallTag(
        begin=f'<tool_call>\n{{"name": "{tool}", "arguments": ', end="}\n</tool_call>", trigger="<tool_call>"
    )


def hermes_call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def offered(*tools: Tool, several: bool = True, answer: bool = False) -> TokenConstraint:
    calls = OfferedCalls(tools=tools, field="tools", several=several)
    made = COMPILER.compile(ConstraintSpec(answer=schema(ROOM) if answer else None, calls=calls), call_tags=hermes)
    assert made is not None
    return made


def forced(*tools: Tool, several: bool) -> TokenConstraint:
    calls = ForcedCalls(tools=tools, field="tool_choice", several=several)
    made = COMPILER.compile(ConstraintSpec(calls=calls))
    assert made is not None
    return made


def test_json_keeps_to_its_schema() -> None:
    room = compiled(COMPILER, schema(ROOM))
    assert takes(room, GOOD)
    assert takes(room, '{\n  "number": -12,\n  "view": "yard"\n}')
    assert not takes(room, '{"number": 7}')
    assert not takes(room, '{"number": 7, "view": "sea", "more": 1}')
    assert not takes(room, '{"number": "7', whole=False)
    assert not takes(room, "Sure: ", whole=False)
    assert not takes(room, GOOD + " and", whole=False)


def test_white_space_has_an_end() -> None:
    room = compiled(COMPILER, schema(ROOM))
    assert takes(room, "{\n" + " " * 20, whole=False)
    assert not takes(room, "{\n" + " " * 21, whole=False)
    assert not takes(room, "{  ", whole=False)


def test_only_the_end_may_follow_a_complete_answer() -> None:
    mask = compiled(COMPILER, schema(ROOM)).start()
    for token in GOOD.encode():
        assert END not in mask.allowed()
        mask.accept(token)
    assert mask.allowed().tolist() == [END]


def test_masks_of_one_constraint_know_nothing_of_each_other() -> None:
    room = compiled(COMPILER, schema(ROOM))
    first, second = room.start(), room.start()
    first.accept(ord("{"))
    assert second.allowed().tolist() == [ord("{")]


def test_a_token_that_was_not_allowed_ends_the_mask() -> None:
    mask = compiled(COMPILER, schema(ROOM)).start()
    with pytest.raises(ConstraintFailure, match="does not follow"):
        mask.accept(ord("x"))
    with pytest.raises(ConstraintFailure):
        mask.allowed()


def test_lenient_schemas_leave_out_what_cannot_be_enforced() -> None:
    loose = compiled(COMPILER, schema(ROOM | {"not": {"const": 1}}, strict=False))
    assert takes(loose, GOOD)
    assert not takes(loose, "[]")


def test_any_value() -> None:
    assert takes(compiled(COMPILER, schema(True)), "[1, null]")


def test_regex_choices_and_grammars() -> None:
    assert takes(compiled(COMPILER, Regex(pattern="[a-c]{2}/\\d", field="regex")), "ab/4")
    assert not takes(compiled(COMPILER, Regex(pattern="^[a-c]{2}$", field="regex")), "abc")
    choices = compiled(COMPILER, Choices(texts=("yes", 'no "way"\n', "\u00e9"), field="choice"))
    assert [takes(choices, text) for text in ("yes", 'no "way"\n', "\u00e9", "no")] == [True, True, True, False]
    gbnf = compiled(COMPILER, Grammar(text='root ::= "a" [b-c]+ end\nend ::= "!" | "?"', field="grammar"))
    assert takes(gbnf, "abcb?")
    assert not takes(gbnf, "a!")
    lark = compiled(COMPILER, Grammar(text='start: "a" TWO\nTWO: /[bc]{2}/', field="grammar"))
    assert takes(lark, "abc")


def test_forced_calls() -> None:
    one = forced(BOOK, LOOK, several=False)
    assert takes(one, f'{{"name": "book", "arguments": {GOOD}}}')
    assert takes(one, '{"name": "look", "arguments": {}}')
    assert not takes(one, '{"name": "look", "arguments": {"x": 1}}')
    assert not takes(one, '{"name": "sleep', whole=False)
    assert not takes(one, "[", whole=False)
    many = forced(BOOK, LOOK, several=True)
    call = '{"name": "look", "arguments": {}}'
    assert takes(many, call)
    assert takes(many, f"[{call}, {call},{call}]")
    assert not takes(many, "[]")
    assert takes(many, f"[{', '.join([call] * 16)}]")
    assert not takes(many, f"[{', '.join([call] * 17)}]")


@pytest.mark.parametrize("seed", range(5))
def test_forced_calls_are_json_with_the_names_as_they_are(seed: int) -> None:
    odd = Tool(name='"\\ \u00e9\n', arguments=LOOK.arguments)
    value = json.loads(walk(forced(odd, several=False), seed))
    assert value == {"name": odd.name, "arguments": {}}


def test_offered_calls_among_free_text() -> None:
    many = offered(BOOK, Tool(name="look", arguments=schema(FREE_ARGUMENTS)))
    assert takes(many, "Just text, { and <tool, and \u00e9.")
    assert takes(many, "Well. " + hermes_call("book", GOOD) + "\n" + hermes_call("look", '{"any": [1]}'))
    assert not takes(many, hermes_call("book", '{"number": true}'))
    assert not takes(many, hermes_call("sleep", "{}"))
    one = offered(BOOK, several=False)
    assert takes(one, "Well. " + hermes_call("book", GOOD) + "\n")
    assert takes(one, "Well.")
    assert not takes(one, hermes_call("book", GOOD) * 2)


def test_offered_calls_in_the_place_of_an_answer() -> None:
    either = offered(BOOK, answer=True)
    assert takes(either, GOOD)
    assert takes(either, "\n" + hermes_call("book", GOOD) * 2)
    assert not takes(either, "Well", whole=False)
    assert not takes(either, GOOD + hermes_call("book", GOOD))
    once = offered(BOOK, answer=True, several=False)
    assert takes(once, hermes_call("book", GOOD))
    assert not takes(once, hermes_call("book", GOOD) * 2)


def test_offered_calls_of_a_format_without_json_are_left_alone() -> None:
    calls = OfferedCalls(tools=(BOOK,), field="tools", several=True)
    assert COMPILER.compile(ConstraintSpec(calls=calls), call_tags=no_call_tags) is None
    answered = COMPILER.compile(ConstraintSpec(answer=schema(ROOM), calls=calls))
    assert answered is not None
    assert takes(answered, GOOD)


def test_calls_behind_control_tokens() -> None:
    """The trigger is one token that text cannot spell."""

    def marked(tool: str) -> CallTag:
        return CallTag(begin=f"<|im_start|>{tool}:", end="<|bos|>", trigger="<|im_start|>")

    calls = OfferedCalls(tools=(BOOK,), field="tools", several=True)
    made = COMPILER.compile(ConstraintSpec(calls=calls), call_tags=marked)
    assert made is not None
    assert follows(made, [b"Well <|im_start|>", 256, b"book:", GOOD.encode(), 258, b"!"])
    assert not takes(made, b"Well " + bytes([0xFF]), whole=False)


def behind(tags: ReasoningTags, *, opened: bool, spec: ConstraintSpec | None = None) -> TokenConstraint:
    spec = spec or ConstraintSpec(answer=schema(ROOM))
    made = COMPILER.compile(spec, reasoning=Reasoning(tags=tags, opened=opened), call_tags=hermes)
    assert made is not None
    return made


def test_reasoning_comes_first() -> None:
    opened, possible = behind(THINK_TAGS, opened=True), behind(THINK_TAGS, opened=False)
    thought = "Hm, {not json} </thin"
    assert takes(opened, f"{thought}</think>\n\n{GOOD}")
    assert not takes(opened, thought)
    assert not takes(opened, f"{thought}</think>Well", whole=False)
    assert takes(possible, GOOD)
    assert takes(possible, f"<think>\n{thought}</think>{GOOD}")
    assert not takes(possible, f"{thought}", whole=False)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", sorted(name for name, known in FORMATS.items() if known.reasoning))
def test_every_formats_reasoning_may_come_first(name: str, opened: bool) -> None:
    tags = FORMATS[name].reasoning
    assert tags is not None
    constraint = behind(tags, opened=opened)
    prompt_end = tags.begin if opened else ""
    assert takes(constraint, tags.wrap("Hm, {not json}.", GOOD, prompt_end=prompt_end))
    assert not takes(constraint, tags.wrap("Hm.", "Well", prompt_end=prompt_end))
    assert takes(constraint, tags.wrap("", GOOD, prompt_end="")) is not opened


@pytest.mark.parametrize("name", sorted(name for name, known in FORMATS.items() if known.call_tag("x")))
def test_every_formats_calls_may_be_offered(name: str) -> None:
    """Among text where the model calls by itself, and what is written is a call to the format's own parser."""
    known = FORMATS[name]
    tag = known.call_tag("book")
    assert tag is not None
    calls = OfferedCalls(tools=(BOOK, LOOK), field="tools", several=True)
    made = COMPILER.compile(ConstraintSpec(calls=calls), call_tags=known.call_tag)
    assert made is not None
    call = f"{tag.begin}{GOOD}{tag.end}"
    assert takes(made, call)
    assert takes(made, "Well.")
    assert not takes(made, f'{tag.begin}{{"number": true')
    context = ReplyContext(prompt_end="", tools={"book": ROOM}, calls=CallMode.AUTO, new_call_id=lambda: "1")
    events = known.parser(context).feed(TextDelta(0, call, ()))
    assert [event.name for event in events if isinstance(event, ToolCallStarted)] == ["book"]


def test_what_a_format_puts_before_its_answers() -> None:
    """Free text, answers and forced calls have it; calls in the format's own way have not."""
    tags = ReasoningTags(begin="<a>", end="<|bos|>", after_end="<|im_start|>", before_answer="<|im_start|>final")
    forced_spec = ConstraintSpec(calls=ForcedCalls(tools=(LOOK,), field="tool_choice", several=True))
    free_spec = ConstraintSpec(calls=OfferedCalls(tools=(LOOK,), field="tools", several=True))
    answered, forced, free = (
        behind(tags, opened=False, spec=spec) for spec in (ConstraintSpec(answer=schema(ROOM)), forced_spec, free_spec)
    )
    call = '{"name": "look", "arguments": {}}'
    final: list[int | bytes] = [256, b"final"]
    assert follows(answered, [*final, GOOD.encode()])
    assert follows(answered, [b"<a>Hm <|bos|>", 258, 256, *final, GOOD.encode()])
    assert not follows(answered, [GOOD.encode()])
    assert follows(forced, [*final, f"[{call}, {call}]".encode()])
    assert follows(free, [*final, b"Well."])
    assert follows(free, [hermes_call("look", "{}").encode()])
    assert follows(free, [hermes_call("look", "{}").encode(), *final, b"Well."])
    assert not follows(free, [b"Well."])


def follows(constraint: TokenConstraint, parts: Sequence[int | bytes]) -> bool:
    """Whether a reply of tokens and of texts, in bytes, is within the constraint."""
    mask = constraint.start()
    for token in [token for part in parts for token in ([part] if isinstance(part, int) else part)]:
        if token not in mask.allowed():
            return False
        mask.accept(token)
    return END in mask.allowed()
