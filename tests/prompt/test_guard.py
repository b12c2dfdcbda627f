"""Text of a request never becomes a control token."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.errors import RequestError
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.guard import GUARDS, NESTING_LIMIT
from anchorline.prompt.messages import normalise_messages, number_calls, parse_arguments
from tests.prompt.support import NOON, TOOLS, assistant, result, toy_builder, user
from tests.prompt.vocabulary import ToyTokenizer, control_ids

# One token continues another, one begins as another ends, one is spelled with doubled characters.
CONTROL = ("<|im_start|>", "<|im_end|>", "<|im_start|>x", "<s>", ">>Q<<", "|>end", "<|user|>")

TEMPLATES = {
    "joined with roles": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
        "{% endfor %}"
    ),
    "content side by side": "{% for m in messages %}{{ m.content | trim }}{% endfor %}<|im_end|>",
    "content inside a half token": "{% for m in messages %}<|im_{{ m.content }}|>{% endfor %}",
    "content after a half token": "{% for m in messages %}{{ '<|im_' + m.content | trim }}\n{% endfor %}",
    "content before a half token": "{% for m in messages %}{{ m.content | trim }}start|>x{% endfor %}",
    "tokens made of roles": "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}{% endfor %}",
    "formatted": "{% for m in messages %}{{ '<|%s|>' % m.content }}{{ '<|{}'.format(m.content) }}{% endfor %}",
    "taken apart": (
        "{% for m in messages %}{% set parts = m.content.split('</think>') %}"
        "{{ parts[0].split('<think>')[-1].strip('\n') }}{{ parts[-1].lstrip('\n') }}{% endfor %}"
    ),
    "pieces removed": "{% for m in messages %}{{ m.content | replace('</think>', '') }}{% endfor %}",
    "as JSON": "{{ messages | tojson }}{{ tools | tojson(indent=2) }}{{ tools | tojson(ensure_ascii=true) }}",
    "as Python": "{% for m in messages %}{{ [m.content] }}{{ m.tool_calls }}{% endfor %}{{ tools }}",
    "keys inside a half token": (
        "{% for k in tools[0].function.parameters | dictsort %}<|{{ k[0] }}|>{{ '<|im_' ~ k[0] }}{% endfor %}"
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k in c.function.arguments %}"
        "{{ '%s%s' % (k, k) }}<|{{ k }}|>{% endfor %}{% endfor %}{% endfor %}"
    ),
    "options": "{{ one }}{{ two }}<|im_{{ one }}{% for m in messages %}{{ m.content }}{% endfor %}",
}

BUILDERS = {name: toy_builder(source, tokenizer=ToyTokenizer(CONTROL)) for name, source in TEMPLATES.items()}

HALVES = [text[:end] for text in CONTROL for end in range(1, len(text))]
HALVES += [text[start:] for text in CONTROL for start in range(1, len(text))]
PIECES = [*CONTROL, *HALVES, *GUARDS[:4], " ", "\n", "</think>", "<think>", "im_start", "start", "end", "user", "é"]
text_pieces = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


def with_texts(texts: list[str]) -> dict[str, Any]:
    """A request that puts the texts wherever a client can."""
    calls = assistant(texts[1], (texts[2] or "f", json.dumps({texts[3]: texts[3]})))
    function = {"name": texts[4], "description": texts[0], "parameters": {texts[5]: {"enum": texts[:3]}}}
    return {
        "messages": [user(texts[0]), calls, {**result(texts[4]), "name": texts[5]}, user(texts[1])],
        "tools": [{"type": "function", "function": function}],
        "template_kwargs": {"one": texts[2], "two": texts[3]},
    }


def naive_render(builder: PromptBuilder, request: dict[str, Any]) -> str:
    """What the template makes of the request without any guard."""
    voice = builder._tools
    messages = normalise_messages(request["messages"])
    for message in messages:
        for call in message.get("tool_calls", ()):
            if not voice.capabilities.text_arguments:
                call["function"]["arguments"] = parse_arguments(call["function"]["arguments"])
    if voice.capabilities.call_ids:
        messages = number_calls(messages, voice.name_call)
    return voice.template.render(
        voice.shape(messages),
        tools=request["tools"],
        add_generation_prompt=True,
        bos_token="",
        eos_token="",
        kwargs=request["template_kwargs"],
        now=NOON,
    )


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(text_pieces, min_size=6, max_size=6))
def test_texts_of_a_request_add_no_control_token_and_change_no_character(name: str, texts: list[str]) -> None:
    builder = BUILDERS[name]
    harmless = builder.chat(**with_texts(["zz"] * 6))
    request = with_texts(texts)
    built = builder.chat(**request)
    assert control_ids(built.prompt.tokens) == control_ids(harmless.prompt.tokens)
    assert built.text == naive_render(builder, request)


@pytest.mark.parametrize("control", CONTROL)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_control_text_cut_in_two_stays_text(name: str, control: str) -> None:
    builder = BUILDERS[name]
    expected = control_ids(builder.chat(**with_texts(["zz"] * 6)).prompt.tokens)
    for cut in range(1, len(control)):
        for gap in ("", "</think>", " </think>\n"):
            texts = [
                "zz " + control[:cut] + " \n",
                "\n " + control[cut:] + " zz",
                *([control[:cut] + gap + control[cut:]] * 4),
            ]
            for order in (texts, texts[::-1]):
                assert control_ids(builder.chat(**with_texts(order)).prompt.tokens) == expected


@pytest.mark.parametrize("spaces", ["", " \n"])
@pytest.mark.parametrize("control", CONTROL)
def test_halves_that_meet_once_they_are_trimmed_stay_text(control: str, spaces: str) -> None:
    builder = BUILDERS["content side by side"]
    for cut in range(1, len(control)):
        built = builder.chat([user(control[:cut] + spaces), user(spaces + control[cut:])])
        assert built.text == control + "<|im_end|>"
        assert control_ids(built.prompt.tokens) == [1001]


@pytest.mark.parametrize("control", CONTROL)
@pytest.mark.parametrize(
    "name", ["content inside a half token", "formatted", "tokens made of roles", "options", "keys inside a half token"]
)
def test_the_inside_of_a_control_text_stays_text(name: str, control: str) -> None:
    builder = BUILDERS[name]
    expected = control_ids(builder.chat(**with_texts(["zz"] * 6)).prompt.tokens)
    for start in range(1, len(control)):
        for end in range(start + 1, len(control)):
            texts = [control[start:end]] * 6
            assert control_ids(builder.chat(**with_texts(texts)).prompt.tokens) == expected


def test_what_the_template_writes_becomes_control_tokens() -> None:
    built = BUILDERS["joined with roles"].chat([user("<|im_start|>")])
    assert control_ids(built.prompt.tokens) == [1000, 1001]
    assert built.text == "<|im_start|>user\n<|im_start|><|im_end|>"


def test_a_token_made_around_a_role_is_one() -> None:
    built = BUILDERS["tokens made of roles"].chat([user("user")])
    assert control_ids(built.prompt.tokens) == [1000 + CONTROL.index("<|user|>")]


LOOKS_FOR_KEYS = (
    "{% set p = tools[0].function.parameters %}<|{{ p.im_end }}{{ p['im_start'] }}{{ 'start' in p }}"
    "{% for k, v in p | dictsort %}{% if k == 'im' %}={{ v }}{% endif %}{% if v.type == 'string' %}!{% endif %}"
    "{% endfor %}{{ [tools[0]] | map(attribute='function.parameters.user.type') | first }}{{ messages[0].content }}"
)


def test_keys_that_the_template_mentions_are_found() -> None:
    """Each of them lies inside of a control token whose beginning the template writes."""
    tokenizer = ToyTokenizer(("<|im_start|>", "<|im_end|>", "<|user|>", "<|string|>"))
    parameters = {"im_end": "A", "im_start": "B", "start": "C", "im": "D", "user": {"type": "string"}}
    built = toy_builder(LOOKS_FOR_KEYS, tokenizer=tokenizer).chat(
        [user("x")], tools=[{"function": {"name": "f", "parameters": parameters}}]
    )
    assert built.text == "<|ABTrue=D!stringx"
    assert control_ids(built.prompt.tokens) == []


def test_a_property_is_found_among_the_required_ones() -> None:
    """A name is broken as a key and as a value in the same way."""
    source = (
        "<|{% set p = tools[0].function.parameters %}{% for k in p.properties %}{{ k in p.required }}{% endfor %}"
        "{{ messages[0].content }}"
    )
    parameters = {"properties": {"im_start": {}, "user": {}, "zz": {}}, "required": ["im_start", "user"]}
    built = toy_builder(source, tokenizer=ToyTokenizer(CONTROL)).chat(
        [user("x")], tools=[{"function": {"name": "f", "parameters": parameters}}]
    )
    assert built.text == "<|TrueTrueFalsex"


def test_a_schema_type_that_the_template_does_not_look_for_stays_text() -> None:
    builder = toy_builder("<|{{ tools[0].type }}|>{{ messages[0].content }}", tokenizer=ToyTokenizer(("<|string|>",)))
    built = builder.chat([user("x")], tools=[{"type": "string"}])
    assert (built.text, control_ids(built.prompt.tokens)) == ("<|string|>x", [])


def test_another_guard_is_taken_when_the_request_contains_the_first_ones() -> None:
    builder = BUILDERS["joined with roles"]
    guards = "".join(GUARDS[:1200])
    built = builder.chat([user(guards), assistant("<|im_end|>")])
    assert control_ids(built.prompt.tokens) == [1000, 1001, 1000, 1001]
    assert guards in built.text


def test_a_request_with_every_guard_is_refused() -> None:
    with pytest.raises(RequestError, match="every character"):
        BUILDERS["joined with roles"].chat([user("".join(GUARDS))])


def test_deep_nesting_is_refused() -> None:
    nested: Any = "x"
    for _ in range(NESTING_LIMIT + 1):
        nested = [nested]
    with pytest.raises(RequestError, match="nested deeper") as caught:
        toy_builder().chat([user("x")], tools=[{"deep": nested}])
    assert caught.value.field == "tools"
    with pytest.raises(RequestError, match="nested deeper"):
        toy_builder().chat([user("x")], template_kwargs={"deep": nested})


@pytest.mark.parametrize(
    "request_parts",
    [{"messages": [user("\ud800")]}, {"messages": [user("x")], "tools": [{"name": "\ud800"}]}],
)
def test_lone_surrogates_are_refused(request_parts: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        toy_builder().chat(**request_parts)


def test_tools_are_guarded_once_and_not_changed() -> None:
    builder = toy_builder()
    before = str(TOOLS)
    first = builder.chat([user("x")], tools=TOOLS)
    assert builder.chat([user("x")], tools=TOOLS).text == first.text
    assert str(TOOLS) == before
