"""Cuts lie where renders stop agreeing, on token boundaries, and cost few renders."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from anchorline.cache.prompt import CutKind, Part, Place
from anchorline.llama.model import Model
from anchorline.prompt.builder import BuiltPrompt, PromptBuilder
from anchorline.prompt.cuts import RENDERS_PER_REQUEST
from anchorline.prompt.turn_marks import CHATML
from tests.prompt.support import (
    CHATML_CONTROL,
    NOON,
    TOOLS,
    CountingTemplate,
    assistant,
    real_builder,
    result,
    system,
    toy_builder,
    user,
)
from tests.prompt.vocabulary import ToyTokenizer

ROUND = [
    system("Be brief."),
    user("What is in a.txt?"),
    assistant("", ("read_file", '{"path": "a.txt"}'), ("read_file", '{"path": "b.txt"}')),
    result("the text of a"),
    result("the text of b", 1),
    assistant("Two texts."),
    user("Thanks"),
]


def texts_at_cuts(builder: PromptBuilder, built: BuiltPrompt) -> list[tuple[CutKind, int | None, str]]:
    """Kind, message and the last 24 characters before each cut."""
    tokens = built.prompt.tokens
    pieces = builder._tokenizer.detokenize
    return [(cut.kind, cut.message, pieces(tokens[: cut.position]).decode()[-24:]) for cut in built.prompt.cuts]


def positions(built: BuiltPrompt, kind: CutKind) -> list[int]:
    return [cut.position for cut in built.prompt.cuts if cut.kind is kind]


def counting_builder(source: str | None = None, clock: Any = None) -> tuple[PromptBuilder, CountingTemplate]:
    template = CountingTemplate(source or CHATML.template().source)
    builder = toy_builder(template=template, clock=clock or (lambda: NOON))
    template.renders = 0
    return builder, template


def test_cuts_of_a_conversation_with_tools() -> None:
    builder = toy_builder()
    built = builder.chat(ROUND, tools=TOOLS)
    assert texts_at_cuts(builder, built) == [
        (CutKind.HEAD, 0, "_end|>\n<|im_start|>user\n"),
        (CutKind.MESSAGE, 1, " is in a.txt?<|im_end|>\n"),
        (CutKind.MESSAGE, 2, "\n</tool_call><|im_end|>\n"),
        (CutKind.MESSAGE, 3, "xt of a\n</tool_response>"),
        (CutKind.MESSAGE, 4, "ool_response><|im_end|>\n"),
        (CutKind.MESSAGE, 5, "nt\nTwo texts.<|im_end|>\n"),
        (CutKind.GENERATION, 6, "|>user\nThanks<|im_end|>\n"),
    ]
    ends = [cut.position for cut in built.prompt.cuts]
    begun = ends[0] - 2  # the head holds what is written in front of the first user's words: a control token, "user\n"
    assert built.prompt.message_starts == (0, begun, *ends[1:-1])
    assert built.prompt.message_bounds == (0, begun, *ends[1:])
    assert built.prompt.locate(begun - 1) == Place(part=Part.HEAD, start=0, messages=(0, 0), role="system")
    assert built.prompt.locate(begun) == Place(part=Part.MESSAGE, start=begun, messages=(1, 1), role="user")
    assert built.prompt.locate(ends[2]) == Place(part=Part.MESSAGE, start=ends[2], messages=(3, 3), role="tool")


@pytest.mark.parametrize("choice", [None, "hermes", "chatml"])
def test_conversations_share_the_head_token_by_token(smollm2_model: Model, choice: str | None) -> None:
    builder = real_builder(smollm2_model.tokenizer, smollm2_model.info, choice)
    first = ["Hello", "0 apples", "alpha", "\nA new line", " space", "<|im_end|>"]
    built = [builder.chat([system("Be brief. " * 30), user(text), assistant("x")], tools=TOOLS) for text in first]
    heads = [b.prompt.head_position or 0 for b in built]
    # A first message that begins with white space may melt into the token before it.
    assert max(heads) - min(heads) <= 1
    head = min(heads)
    assert head > 60
    assert len({b.prompt.tokens[:head].tobytes() for b in built}) == 1


def test_each_turn_goes_on_from_the_cut_before_the_generation_prompt(smollm2_model: Model) -> None:
    builder = real_builder(smollm2_model.tokenizer, smollm2_model.info)
    before = None
    for count in (2, 5, 7):
        built = builder.chat(ROUND[:count], tools=TOOLS)
        if before is not None:
            (end,) = positions(before, CutKind.GENERATION)
            assert built.prompt.tokens[:end].tolist() == before.prompt.tokens[:end].tolist()
            assert end in positions(built, CutKind.MESSAGE)
        assert positions(built, CutKind.GENERATION)[0] < len(built.prompt)
        before = built


def test_without_generation_prompt_the_end_is_a_message_end() -> None:
    built = toy_builder().chat(ROUND, tools=TOOLS, add_generation_prompt=False)
    assert positions(built, CutKind.GENERATION) == []
    assert positions(built, CutKind.MESSAGE)[-1] == len(built.prompt)


def test_a_warm_turn_renders_only_the_new_messages() -> None:
    builder, template = counting_builder()
    builder.chat(ROUND[:2], tools=TOOLS)
    assert template.renders == 1 + 3 + 1  # whole, three for the head, before the generation prompt
    template.renders = 0
    warm = builder.chat(ROUND[:5], tools=TOOLS)
    assert template.renders == 1 + 3
    template.renders = 0
    builder.chat(ROUND[:5], tools=TOOLS)
    assert template.renders == 1
    assert warm.prompt.cuts == toy_builder().chat(ROUND[:5], tools=TOOLS).prompt.cuts


def test_a_long_cold_conversation_is_cut_at_its_newest_messages() -> None:
    messages = [system("s"), *(m for n in range(40) for m in (user(f"q{n}"), assistant(f"a{n}")))]
    builder, template = counting_builder()
    built = builder.chat(messages)
    assert template.renders == 1 + 3 + RENDERS_PER_REQUEST
    assert [cut.message for cut in built.prompt.cuts][1:] == list(range(81 - RENDERS_PER_REQUEST, 81))
    assert list(built.prompt.message_starts) == sorted(built.prompt.message_starts)
    template.renders = 0
    builder.chat([*messages, user("next")])
    assert template.renders == 1 + 1


def test_a_changed_message_in_the_middle_gives_the_same_cuts_as_from_scratch() -> None:
    builder = toy_builder()
    builder.chat(ROUND, tools=TOOLS)
    edited = [*ROUND[:3], result("another text"), *ROUND[4:]]
    assert builder.chat(edited, tools=TOOLS).prompt.cuts == toy_builder().chat(edited, tools=TOOLS).prompt.cuts


FORGETS_REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}{{ m.reasoning_content }}\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_that_drops_old_reasoning() -> None:
    builder = toy_builder(FORGETS_REASONING)
    thought = {**assistant("answer"), "reasoning_content": "long thoughts"}
    built = builder.chat([user("q"), thought, user("next")])
    ends = {message: text for kind, message, text in texts_at_cuts(builder, built) if kind is CutKind.MESSAGE}
    assert ends[0].endswith("user\nq<|im_end|>\n")
    assert ends[1].endswith("<|im_start|>assistant\n")  # there the thoughts are missing later


REFUSES_ASSISTANT_LAST = (
    "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}" + FORGETS_REASONING
)


def test_a_part_that_cannot_be_rendered_yields_no_cut() -> None:
    built = toy_builder(REFUSES_ASSISTANT_LAST).chat([system("s"), user("q"), assistant("a"), user("next")])
    assert [(cut.kind, cut.message) for cut in built.prompt.cuts] == [
        (CutKind.HEAD, 0),
        (CutKind.MESSAGE, 1),
        (CutKind.GENERATION, 3),
    ]


def test_a_template_that_cannot_render_other_first_messages_has_no_head() -> None:
    source = "{% if messages[-1].content in ['alpha', '0'] %}{{ raise_exception('no') }}{% endif %}" + FORGETS_REASONING
    built = toy_builder(source).chat([system("s"), user("q"), assistant("a")])
    assert built.prompt.head_position is None
    assert positions(built, CutKind.GENERATION)


def test_a_head_that_shows_the_time_is_found_again_when_it_changes() -> None:
    now = [NOON]
    source = "<|im_start|>{{ strftime_now('%d %B') }} {{ tools | tojson if tools }}<|im_end|>\n" + FORGETS_REASONING
    builder, template = counting_builder(source, clock=lambda: now[0])
    old = builder.chat([system("s"), user("q")], tools=TOOLS)
    now[0] = NOON + timedelta(days=31)
    new = builder.chat([system("s"), user("q")], tools=TOOLS)
    fresh, _ = counting_builder(source, clock=lambda: now[0])
    assert new.prompt.cuts == fresh.chat([system("s"), user("q")], tools=TOOLS).prompt.cuts
    assert (old.text[:16], new.text[:17]) == ("<|im_start|>17 M", "<|im_start|>17 Ju")
    template.renders = 0
    builder.chat([system("s"), user("other")], tools=TOOLS)
    assert template.renders == 2  # the new head is remembered


def test_the_clock_is_read_once_for_all_renders_of_a_request() -> None:
    ticks = iter(range(1000))

    def clock() -> datetime:
        return NOON + timedelta(seconds=next(ticks))

    source = "{{ strftime_now('%S') }}" + FORGETS_REASONING
    built = toy_builder(source, clock=clock).chat([system("s"), user("q"), assistant("a"), user("r")])
    assert [cut.kind for cut in built.prompt.cuts] == [CutKind.HEAD, *[CutKind.MESSAGE] * 2, CutKind.GENERATION]


def test_of_several_cuts_in_one_place_the_first_kind_and_the_newest_message_stay() -> None:
    bare = toy_builder("{% for m in messages %}{{ m.content }}{% endfor %}")
    prompt = bare.chat([system("s"), user(""), user("x"), assistant(""), user("y"), user("")]).prompt
    assert [(cut.position, cut.kind, cut.message) for cut in prompt.cuts] == [
        (1, CutKind.HEAD, 0),
        (2, CutKind.MESSAGE, 3),
        (3, CutKind.GENERATION, 5),
    ]


def test_cuts_are_ascending_distinct_and_inside() -> None:
    empty = toy_builder("{% for m in messages %}{{ m.content }}{% endfor %}")
    for builder in (
        toy_builder(),
        empty,
        toy_builder(tokenizer=ToyTokenizer(CHATML_CONTROL, bos="<s>", adds_bos=True)),
    ):
        prompt = builder.chat([system("s"), user(""), assistant(""), user("x")], tools=TOOLS).prompt
        found = [cut.position for cut in prompt.cuts]
        assert found == sorted(set(found))
        assert all(0 < position <= len(prompt) for position in found)
        assert len(prompt.message_starts) == 4
