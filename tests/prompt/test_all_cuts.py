"""What a builder was asked before changes no token, and with ``all_cuts`` no cut either."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.cache.prompt import CutKind
from anchorline.errors import RequestError
from anchorline.limits import Limits
from anchorline.prompt.bounds import Budget, bounded
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.cuts import RENDERS_PER_REQUEST, CutFinder
from anchorline.prompt.template import ChatTemplate
from anchorline.prompt.tokenise import PromptTokenizer
from anchorline.prompt.turn_marks import CHATML
from tests.prompt.support import (
    CHATML_CONTROL,
    NOON,
    TOOLS,
    CountingTemplate,
    assistant,
    selected,
    system,
    toy_builder,
    user,
)
from tests.prompt.vocabulary import ToyTokenizer

LINES = "<|im_start|>{{ m.role }}{{ m.name }}\n{{ m.content }}<|im_end|>\n"
TEMPLATES = {
    "hermes": CHATML.template().source,
    "no separators": "{% for m in messages %}{{ m.content }}{{ m.name }}{% endfor %}",
    "forgets reasoning": (
        "{% for m in messages %}{% if m.reasoning_content and loop.last %}{{ m.reasoning_content }}{% endif %}"
        f"{LINES}{{% endfor %}}"
    ),
    "refuses a last assistant": (
        "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}"
        f"{{% for m in messages %}}{LINES}{{% endfor %}}"
    ),
    "shows the time last": f"{{% for m in messages %}}{LINES}{{% endfor %}}{{{{ strftime_now('%S') }}}}",
    "shows the time of some": (
        "{% for m in messages %}{% if strftime_now('%S') == '01' and loop.last %}{{ m.content }}{% endif %}"
        f"{LINES}{{% endfor %}}"
    ),
    "shows an option": "{% for m in messages %}" + LINES + "{{ extra if loop.last }}{% endfor %}",
}

SELECTED = {
    name: selected(ChatTemplate(source, name=name), ToyTokenizer(CHATML_CONTROL)) for name, source in TEMPLATES.items()
}

texts = st.sampled_from(["", "a", "ab", "abc", "b", "the ", " a", "<|im_end|>", "\n\n"])


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    message = {"role": draw(st.sampled_from(["system", "user", "assistant"])), "content": draw(texts)}
    if draw(st.booleans()):
        message["name" if message["role"] == "system" else "reasoning_content"] = draw(texts)
    if message["role"] == "assistant" and draw(st.booleans()):
        arguments = draw(st.sampled_from(['{"a": 1}', '{"a": 1.0}', '{"a": NaN}', '{"a": null}', "a"]))
        return {**message, **assistant(message["content"], ("read_file", arguments))}
    return message


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Several requests, later ones often going on from, or going back in, an earlier one."""
    made: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(2, 5))):
        base = draw(st.sampled_from([[], *[request["messages"] for request in made]]))
        kept = base[: draw(st.integers(0, len(base)))]
        added = draw(st.lists(messages(), min_size=0 if kept else 1, max_size=4))
        made.append(
            {
                "messages": [*kept, *added],
                "tools": draw(st.sampled_from([None, TOOLS, TOOLS[::-1]])),
                "template_kwargs": draw(st.sampled_from([{}, {"extra": "a"}, {"extra": 1}, {"extra": True}])),
                "add_generation_prompt": draw(st.booleans()),
            }
        )
    return made


class Clocked:
    """A builder over the toy tokenizer, and the second that its clock shows."""

    def __init__(self, name: str, *, all_cuts: bool, memo_bytes: int | None = None) -> None:
        tokenizer = ToyTokenizer(CHATML_CONTROL)
        self.second = 0
        self.builder = PromptBuilder(
            tokenizer,
            SELECTED[name],
            clock=lambda: NOON + timedelta(seconds=self.second),
            all_cuts=all_cuts,
        )
        if memo_bytes is not None:
            self.builder.tokenizer = PromptTokenizer(tokenizer, memo_bytes=memo_bytes)
            self.builder._cuts = CutFinder(self.builder.tokenizer, all_cuts=all_cuts, memo_bytes=memo_bytes)

    def facts(self, request: dict[str, Any], *, second: int = 0) -> tuple[Any, ...]:
        """Everything that the request's prompt says, comparable; or its error."""
        self.second = second
        try:
            prompt = self.builder.chat(**request).prompt
        except RequestError as error:
            return (str(error),)
        return (
            prompt.tokens.tolist(),
            prompt.cuts,
            prompt.message_starts,
            prompt.turn_start,
            prompt.pin_head,
            prompt.tool_fingerprint,
        )


@pytest.mark.parametrize("memo_bytes", [None, 3000])
@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=80, deadline=None)
@given(requests=conversations(), seconds=st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_a_prompt_is_a_function_of_its_request(
    name: str, memo_bytes: int | None, requests: list[dict[str, Any]], seconds: list[int]
) -> None:
    experienced = Clocked(name, all_cuts=True, memo_bytes=memo_bytes)
    for request, second in zip(requests, seconds, strict=False):
        fresh = Clocked(name, all_cuts=True)
        assert experienced.facts(request, second=second) == fresh.facts(request, second=second)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=80, deadline=None)
@given(requests=conversations())
def test_tokens_are_a_function_of_the_request_in_any_mode(name: str, requests: list[dict[str, Any]]) -> None:
    experienced = Clocked(name, all_cuts=False, memo_bytes=3000)
    for request in requests:
        fresh = Clocked(name, all_cuts=True)
        assert experienced.facts(request)[0] == fresh.facts(request)[0]


def conversation(count: int) -> list[dict[str, Any]]:
    pairs = [(user(f"question {index}"), assistant(f"answer {index}")) for index in range(count // 2)]
    return [system("s"), *[message for pair in pairs for message in pair]]


def test_a_long_conversation_has_a_cut_behind_every_message() -> None:
    count = 4 * RENDERS_PER_REQUEST
    built = Clocked("hermes", all_cuts=True).builder.chat(conversation(count))
    ends = [cut.message for cut in built.prompt.cuts if cut.kind is not CutKind.HEAD]
    assert ends == list(range(1, count + 1))


def test_the_cuts_of_a_conversation_that_grew_are_those_of_one_sent_at_once() -> None:
    whole = conversation(4 * RENDERS_PER_REQUEST)
    grown = Clocked("hermes", all_cuts=True)
    for count in range(2, len(whole), 2):
        grown.facts({"messages": whole[:count]})
    at_once = Clocked("hermes", all_cuts=True)
    assert grown.facts({"messages": whole}) == at_once.facts({"messages": whole})


@pytest.mark.parametrize("order", [(3, 2), (2, 3)])
def test_an_end_that_moves_when_messages_follow_is_found_anew(order: tuple[int, int]) -> None:
    """The thoughts are only shown while theirs is the last message."""
    whole = [user("q"), {**assistant("answer"), "reasoning_content": "long thoughts"}, user("next")]
    experienced = Clocked("forgets reasoning", all_cuts=True)
    for count in order:
        request = {"messages": whole[:count]}
        assert experienced.facts(request) == Clocked("forgets reasoning", all_cuts=True).facts(request)


def test_what_was_rendered_before_is_not_rendered_again() -> None:
    template = CountingTemplate(TEMPLATES["hermes"])
    builder = toy_builder(template=template, all_cuts=True)
    builder.chat(conversation(40))
    template.renders = 0
    builder.chat(conversation(42))
    assert template.renders == 1 + 2  # the whole, and the two new ends


def test_limits_of_the_template_never_leave_out_a_cut() -> None:
    """The request is refused instead; what was found until then makes the next attempt cheaper."""
    request = {"messages": conversation(40)}
    whole = Clocked("hermes", all_cuts=True).facts(request)
    limited = Clocked("hermes", all_cuts=True)
    answers = []
    for _ in range(8):
        with bounded(Budget(Limits(template_steps=200))):
            answers.append(limited.facts(request))
    refused = [answer for answer in answers if answer != whole]
    assert 0 < len(refused) < 8
    assert answers[len(refused) :] == [whole] * (8 - len(refused))
    assert all("--max-template-steps" in answer[0] for answer in refused)


def test_a_head_is_not_that_of_another_name() -> None:
    """Here one head begins as the other does, and only the name tells them apart."""
    name = "no separators"
    named = {"messages": [{**system("abc"), "name": "the "}, user("x")]}
    experienced = Clocked(name, all_cuts=False)
    experienced.facts({"messages": [system("abc"), user("x")]})
    assert experienced.facts(named) == Clocked(name, all_cuts=False).facts(named)
