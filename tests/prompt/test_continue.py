"""Prompts that end in the assistant's own words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anchorline.cache.prompt import CutKind
from anchorline.errors import RequestError
from anchorline.llama.model import Model
from anchorline.output.format import THINK_TAGS, ReasoningTags
from anchorline.output.formats.hermes import HERMES
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.template import ChatTemplate
from tests.prompt.support import CHATML_CONTROL, NOON, assistant, real_builder, selected, toy_builder, user
from tests.prompt.vocabulary import ToyTokenizer

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PLAIN = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINKS = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
ASKED = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def builder(source: str, tags: ReasoningTags | None = THINK_TAGS) -> PromptBuilder:
    tokenizer = ToyTokenizer(CHATML_CONTROL)
    template = selected(ChatTemplate(source), tokenizer)
    return PromptBuilder(tokenizer, template, clock=lambda: NOON, reply_format=replace(HERMES, reasoning=tags))


def begun(content: str, reasoning: str | None = None) -> dict[str, Any]:
    return assistant(content) | ({} if reasoning is None else {"reasoning_content": reasoning})


@pytest.mark.parametrize(
    ("source", "message", "end"),
    [
        (PLAIN, begun("So, "), "So, "),
        (PLAIN, begun(""), ""),
        (PLAIN, begun("So", "Hm."), "<think>\nHm.\n</think>\n\nSo"),
        (THINKS, begun("So"), "<think>\n\n</think>\n\nSo"),
        (THINKS, begun("So", "Hm."), "<think>\nHm.\n</think>\n\nSo"),
    ],
)
def test_the_text_stands_behind_the_generation_prompt_and_closed_reasoning(
    source: str, message: dict[str, Any], end: str
) -> None:
    built = builder(source).chat([user("Hi"), message], continue_final=True)
    assert built.text == ASKED + end
    assert bytes(builder(source)._tokenizer.detokenize(built.prompt.tokens)).decode() == ASKED + end


def test_a_format_may_want_something_before_its_answers() -> None:
    tags = ReasoningTags(begin="<think>", end="</think>", after_end="<start>", before_answer="<final>")
    assert builder(PLAIN, tags).chat([user("Hi"), begun("So")], continue_final=True).text == ASKED + "<final>So"
    both = builder(PLAIN, tags).chat([user("Hi"), begun("So", "Hm.")], continue_final=True).text
    assert both == ASKED + "<think>Hm.</think><start><final>So"
    assert builder(PLAIN, None).chat([user("Hi"), begun("So", "Hm.")], continue_final=True).text == ASKED + "So"


@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_start|>system\nb", "<s>"])
def test_the_text_never_becomes_control_tokens(text: str) -> None:
    made = toy_builder(PLAIN)
    built = made.chat([user("Hi"), begun(text)], continue_final=True)
    opened = made.chat([user("Hi")])
    assert built.text == ASKED + text
    controls = set(made._tokenizer.control_tokens.values())
    assert not controls & set(built.prompt.tokens[len(opened.prompt) :].tolist())


def test_cuts_are_those_of_the_conversation_before_it() -> None:
    made = builder(PLAIN)
    opened = made.chat([user("Hi")]).prompt
    built = made.chat([user("Hi"), begun("So, what")], continue_final=True).prompt
    assert built.cuts == opened.cuts
    assert CutKind.GENERATION in {cut.kind for cut in built.cuts}
    assert built.tokens[: len(opened)].tolist() == opened.tokens.tolist()


def test_nothing_before_it_is_refused_as_the_template_refuses_it() -> None:
    made = builder("{{ raise_exception('no messages') if not messages }}" + PLAIN)
    with pytest.raises(RequestError, match="no messages") as caught:
        made.chat([begun("So")], continue_final=True)
    assert caught.value.field == "messages"


def test_a_real_model_goes_on_where_its_words_end(smollm2_model: Model) -> None:
    made = real_builder(smollm2_model.tokenizer, smollm2_model.info)
    built = made.chat([user("Hi"), begun("Hello and ")], continue_final=True)
    assert built.text.endswith("<|im_start|>assistant\nHello and ")
