"""Which rule answers, and that its tokens are those of the turn as the template writes it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.llama.model import Model
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.turn_marks import TURN_MARKS
from anchorline.script.rules import Match, Reply, Rule, ToolCall
from anchorline.script.script import DEFAULT_REPLY, Script
from tests.prompt.support import model_info, real_builder, user

END = "<|im_end|>"
HERMES = "hermes"
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""Opens the block of reasoning in the generation prompt."""
NOT_THINKING = THINKING.replace("assistant\n<think>\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")
"""Opens and closes it in the generation prompt."""


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


class Scripted:
    """A script over a model's tokenizer; ``say`` gives the text of the reply, control tokens spelled out."""

    def __init__(self, model: Model, *rules: Rule, template: str = HERMES) -> None:
        tokenizer = model.tokenizer
        assert tokenizer.eos is not None
        self.tokenizer = tokenizer
        builtin = template in TURN_MARKS
        info = model_info(chat_template=None if builtin else template)
        self.prompts: PromptBuilder = real_builder(tokenizer, info, template if builtin else None)
        self.script = Script(rules, self.prompts, end=tokenizer.eos, end_of_generation=tokenizer.end_of_generation)

    def ids(self, messages: list[dict[str, Any]], *names: str) -> tuple[int, ...]:
        tools = [tool(name) for name in names] or None
        return self.script.answer(messages, tools=tools).ids

    def say(self, messages: list[dict[str, Any]], *names: str) -> str:
        return self.tokenizer.detokenize(self.ids(messages, *names)).decode()


def content(text: str) -> Reply:
    return Reply(content=text)


def test_each_rule_answers_once_unless_it_repeats(spelling_model: Model) -> None:
    scripted = Scripted(
        spelling_model,
        Rule(reply=content("one")),
        Rule(reply=content("two")),
        Rule(reply=content("more"), repeat=True),
    )
    said = [scripted.say([user("go")]) for _ in range(4)]
    assert said == [f"{text}{END}" for text in ("one", "two", "more", "more")]


def test_without_a_rule_the_default_is_said(spelling_model: Model, caplog: pytest.LogCaptureFixture) -> None:
    scripted = Scripted(spelling_model, Rule(match=Match(contains="else"), reply=content("no")))
    assert scripted.say([user("go")], "shell") == DEFAULT_REPLY.content + END
    assert "no rule answers a call of 1 messages with the tools: shell" in caplog.text


CALL = {"id": "a", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
ROUND = [
    {"role": "system", "content": "You help."},
    user("list the files"),
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "readme.txt"}]},
]


@pytest.mark.parametrize(
    ("match", "first", "second"),
    [
        (Match(), True, True),
        (Match(tools=True), True, True),
        (Match(tools=False), False, False),
        (Match(results=True), False, True),
        (Match(results=False), True, False),
        (Match(contains="list"), True, False),
        (Match(contains="readme"), False, True),
        (Match(system="help"), True, True),
        (Match(system="harm"), False, False),
        (Match(contains="help"), False, False),
        (Match(contains="list", results=True), False, False),
    ],
)
def test_what_a_match_looks_at(spelling_model: Model, match: Match, first: bool, second: bool) -> None:
    for messages, answers in ((ROUND[:2], first), (ROUND, second)):
        scripted = Scripted(spelling_model, Rule(match=match, reply=content("yes")))
        assert (scripted.say(messages, "shell") == f"yes{END}") is answers


def test_a_later_user_message_does_not_hide_the_news(spelling_model: Model) -> None:
    scripted = Scripted(spelling_model, Rule(match=Match(results=True, contains="readme"), reply=content("yes")))
    assert scripted.say([*ROUND, user("a reminder")], "shell") == f"yes{END}"


def test_tool_calls_are_written_as_the_template_does(spelling_model: Model) -> None:
    calls = ((ToolCall(name="run"), ToolCall(name="shell", arguments={"command": "echo 'é'"})), ToolCall(name="look"))
    scripted = Scripted(spelling_model, Rule(reply=Reply(content="Let me see.", tool_calls=calls)))
    assert scripted.say([user("go")], "shell", "look") == (
        "Let me see.\n"
        '<tool_call>\n{"name": "shell", "arguments": {"command": "echo \'é\'"}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "look", "arguments": {{}}}}\n</tool_call>{END}'
    )


def test_a_rule_whose_tools_are_not_offered_is_passed_over_and_kept(spelling_model: Model) -> None:
    scripted = Scripted(
        spelling_model,
        Rule(reply=Reply(tool_calls=(ToolCall(name="shell"),))),
        Rule(reply=content("instead"), repeat=True),
    )
    assert scripted.say([user("go")], "look") == f"instead{END}"
    assert "shell" in scripted.say([user("go")], "shell")


def test_the_end_of_another_conversation_is_not_said(spelling_model: Model) -> None:
    """Control-token texts in a reply's content stay text."""
    scripted = Scripted(spelling_model, Rule(reply=content(f"a{END}b")))
    ids = scripted.ids([user("go")])
    assert spelling_model.tokenizer.detokenize(ids).decode() == f"a{END}b{END}"
    assert ids.count(spelling_model.tokenizer.control_tokens[END]) == 1


@pytest.mark.parametrize(
    ("raw", "said"),
    [("<think>a", f"<think>a{END}"), (f"a{END}b", f"a{END}"), ("<|im_start|>", f"<|im_start|>{END}")],
)
def test_raw_text_is_said_as_it_is_up_to_its_end(spelling_model: Model, raw: str, said: str) -> None:
    assert Scripted(spelling_model, Rule(reply=Reply(raw=raw))).say([user("go")]) == said


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (THINKING, f"Hm.\n</think>\n\nyes{END}"),
        (NOT_THINKING, f"Hm.\n</think>\n\nyes{END}"),
        ("chatml", f"yes{END}"),
    ],
)
def test_reasoning_goes_on_from_where_the_prompt_leaves_off(spelling_model: Model, template: str, said: str) -> None:
    scripted = Scripted(spelling_model, Rule(reply=Reply(reasoning="Hm.", content="yes")), template=template)
    assert scripted.say([user("go")]) == said


TEXT = st.text(max_size=60) | st.text(alphabet="<|im_end>tolcar {}\"'\\\n", max_size=60)


@settings(deadline=None, max_examples=40)
@given(text=TEXT.filter(str.strip), value=TEXT, template=st.sampled_from(["chatml", THINKING]))
def test_the_next_turn_begins_with_what_was_said(spelling_model: Model, text: str, value: str, template: str) -> None:
    """The ids are those of the re-rendered turn, so that a warm turn finds them in the cache."""
    arguments = {"text": value}
    reply = Reply(content=text, reasoning="Hm.", tool_calls=(ToolCall(name="shell", arguments=arguments),))
    scripted = Scripted(spelling_model, Rule(reply=reply), template=template)
    tools = [tool("shell")]
    call = {"id": "x", "type": "function", "function": {"name": "shell", "arguments": json.dumps(arguments)}}
    said = {"role": "assistant", "content": text, "reasoning_content": "Hm.", "tool_calls": [call]}
    prompt = scripted.prompts.chat([user("go")], tools=tools).prompt.tokens
    whole = np.concatenate((prompt, np.array(scripted.ids([user("go")], "shell"), np.int32)))
    after = scripted.prompts.chat([user("go"), said, user("on")], tools=tools).prompt.tokens
    assert np.array_equal(after[: whole.size], whole)


def test_many_threads_spend_each_rule_once(spelling_model: Model) -> None:
    scripted = Scripted(spelling_model, *(Rule(reply=content(f"reply {index}")) for index in range(40)))
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda _: scripted.say([user("go")]), range(40)))
    assert sorted(said) == sorted(f"reply {index}{END}" for index in range(40))
