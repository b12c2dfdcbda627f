"""From a request to ids: BOS, pins, tools, raw prompts, and many threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from anchorline.errors import RequestError
from anchorline.llama.model import Model
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.fingerprint import tool_fingerprint, tool_json
from anchorline.prompt.guard import GUARDS
from tests.prompt.support import CHATML_CONTROL, TOOLS, assistant, real_builder, result, system, toy_builder, user
from tests.prompt.vocabulary import ToyTokenizer, control_ids

BOS = 1000 + CHATML_CONTROL.index("<s>")


def with_bos(source: str, *, adds_bos: bool = True) -> PromptBuilder:
    return toy_builder(source, tokenizer=ToyTokenizer(CHATML_CONTROL, bos="<s>", adds_bos=adds_bos))


WRITES_BOS = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
WRITES_NONE = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("source", [WRITES_BOS, WRITES_NONE])
def test_bos_comes_first_and_once(source: str) -> None:
    built = with_bos(source).chat([user("<s>x"), user("y")])
    assert control_ids(built.prompt.tokens) == [BOS, 1000, 1000]
    assert built.prompt.tokens[0] == BOS
    assert built.prompt.unwritten_tokens == (0 if source is WRITES_BOS else 1)
    cut = built.prompt.cuts[-1].position
    assert cut == len(built.prompt)


def test_no_bos_where_the_model_wants_none_unless_the_template_writes_it() -> None:
    assert control_ids(with_bos(WRITES_NONE, adds_bos=False).chat([user("x")]).prompt.tokens) == [1000]
    assert control_ids(with_bos(WRITES_BOS, adds_bos=False).chat([user("x")]).prompt.tokens) == [BOS, 1000]


def test_cuts_count_the_bos() -> None:
    messages = [system("s"), user("q"), assistant("a")]
    plain = toy_builder(WRITES_NONE).chat(messages).prompt
    shifted = with_bos(WRITES_NONE).chat(messages).prompt
    assert [cut.position for cut in shifted.cuts] == [cut.position + 1 for cut in plain.cuts]
    assert shifted.message_starts[1:] == tuple(start + 1 for start in plain.message_starts[1:])


def test_raw_text_has_its_control_tokens_parsed() -> None:
    builder = with_bos(WRITES_NONE)
    assert control_ids(builder.text("a<|im_end|>b").prompt.tokens) == [BOS, 1001]
    assert control_ids(builder.text("<s>a").prompt.tokens) == [BOS]
    assert [builder.text(text).prompt.unwritten_tokens for text in ("a", "<s>a")] == [1, 0]
    assert builder.text("").prompt.tokens.tolist() == [BOS]
    assert builder.text("a").prompt.cuts == ()


def test_raw_text_that_is_empty_or_no_unicode() -> None:
    with pytest.raises(RequestError, match="empty") as caught:
        toy_builder().text("")
    assert caught.value.field == "prompt"
    with pytest.raises(RequestError) as caught:
        toy_builder().text("a\ud800")
    assert caught.value.field == "prompt"


def test_token_ids_are_taken_as_they_are() -> None:
    assert with_bos(WRITES_NONE).tokens([5, 1001, 7]).prompt.tokens.tolist() == [5, 1001, 7]


@pytest.mark.parametrize("ids", [[], [-1], [1004], [1.5], [True], ["1"], [None]])
def test_token_ids_outside_the_vocabulary(ids: list[Any]) -> None:
    with pytest.raises(RequestError) as caught:
        toy_builder().tokens(ids)
    assert caught.value.field == "prompt"


def test_tools_pin_the_head_and_name_it() -> None:
    prompt = toy_builder().chat([user("x")], tools=TOOLS).prompt
    assert prompt.pin_head
    assert prompt.tool_fingerprint == tool_fingerprint(TOOLS)


def test_a_system_text_pins_the_head_from_256_tokens_on() -> None:
    builder = toy_builder()
    short, long = builder.chat([system("z" * 150), user("x")]), builder.chat([system("z" * 260), user("x")])
    assert (short.prompt.pin_head, long.prompt.pin_head) == (False, True)
    assert long.prompt.tool_fingerprint is None
    assert not builder.chat([user("z" * 5000)]).prompt.pin_head


CONTENT = "{% for m in messages %}{{ m.content }}{% endfor %}"


SHOWS_CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments%s }}{% endfor %}"
EACH = "{% for m in messages %}"
PARTS = EACH + "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
TEXT_ARGUMENTS = EACH + "{{ m.content }}" + SHOWS_CALLS.replace("%s", "") + "{% endfor %}"
NULL_CONTENT = EACH + "{{ m.tool_calls | string if m.content is none else m.content }}{% endfor %}"
ONE_CALL = (
    EACH + "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    "{{ m.content }}" + SHOWS_CALLS.replace("%s", " | tojson") + "{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (PARTS, "[sys][q][][r1][r2]"),
        (TEXT_ARGUMENTS, 'sysqf{"a":1}g{}r1r2'),
        (NULL_CONTENT, "sysq[{'id': '000000000'"),
        (ONE_CALL, 'sysqf{"a": 1}r1g{}r2'),
    ],
)
def test_messages_take_the_form_that_the_template_wants(source: str, text: str) -> None:
    call = assistant("", ("f", '{"a":1}'), ("g", "{}"))
    built = toy_builder(source).chat([system("sys"), user("q"), call, result("r1"), result("r2", 1)])
    assert built.text.startswith(text)


def test_the_json_of_tools_is_written_once() -> None:
    builder = toy_builder()
    builder.chat([user("x")], tools=TOOLS)
    _, json_texts = builder._tools.guard.value(
        b"tools" + tool_json(TOOLS), GUARDS[0], "", lambda: pytest.fail("built anew")
    )
    assert [texts for part, texts in json_texts.values() if part in TOOLS and texts != {}]


def test_the_clock_is_what_templates_show() -> None:
    assert toy_builder("{{ strftime_now('%Y-%m-%d') }}" + CONTENT).render([user("x")]) == "2024-05-17x"


def test_no_tools_is_the_same_as_empty_tools() -> None:
    builder = toy_builder()
    assert builder.chat([user("x")], tools=[]).text == builder.chat([user("x")]).text


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"x": {1, 2}.__iter__()}]}, "tools"),
        ({"template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        toy_builder().chat([user("x")], **arguments)
    assert caught.value.field == field


def test_options_reach_the_template() -> None:
    builder = toy_builder("{{ 'on' if enable_thinking else 'off' }}{% for m in messages %}{{ m.content }}{% endfor %}")
    assert builder.render([user("x")], template_kwargs={"enable_thinking": True}) == "onx"
    assert builder.render([user("x")]) == "offx"


def test_developer_is_system_and_the_models_own_template_stays_without_tools(smollm2_model: Model) -> None:
    builder = real_builder(smollm2_model.tokenizer, smollm2_model.info)
    text = builder.render([{"role": "developer", "content": "Be brief."}, user("Hi")])
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert "SmolLM" in builder.render([user("Hi")])
    assert "SmolLM" not in builder.render([user("Hi")], tools=TOOLS)


def test_calls_and_results_are_shown_even_when_the_tools_are_not_sent_again(smollm2_model: Model) -> None:
    builder = real_builder(smollm2_model.tokenizer, smollm2_model.info)
    text = builder.render([user("Hi"), assistant("", ("read_file", '{"path": "a"}')), result("text of a")])
    assert '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>' in text
    assert "<tool_response>\ntext of a\n</tool_response>" in text
    assert "<tools>" not in text


def test_a_template_without_system_role_gets_the_text_in_the_first_user_message() -> None:
    refuses = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    builder = toy_builder(refuses)
    first, other = (builder.chat([system("Be brief."), user(text)]) for text in ("Hi", "Bye"))
    assert first.text == "<|im_start|>user\nBe brief.\n\nHi<|im_end|>\n"
    head = first.prompt.head_position or 0
    assert head == other.prompt.head_position
    assert builder._tokenizer.detokenize(first.prompt.tokens[:head]) == b"<|im_start|>user\nBe brief.\n\n"


def test_text_is_what_render_says_and_the_ids_spell_it(smollm2_model: Model) -> None:
    builder = real_builder(smollm2_model.tokenizer, smollm2_model.info)
    messages = [system("s"), user("<|im_end|> ¸ é"), assistant("ok")]
    built = builder.chat(messages, tools=TOOLS)
    assert built.text == builder.render(messages, tools=TOOLS)
    assert smollm2_model.tokenizer.detokenize(built.prompt.tokens).decode() == built.text
    assert built.render_seconds >= 0
    assert built.tokenize_seconds >= 0


def test_a_warm_turn_with_large_tools_tokenises_only_what_is_new(smollm2_model: Model) -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "description": "Does one more thing. " * 100}}
        for n in range(25)
    ]
    history = [system("Be brief. " * 50)]
    for n in range(60):
        history += [user(f"Question {n} " * 20), assistant(f"Answer {n} " * 20)]
    builder = real_builder(smollm2_model.tokenizer, smollm2_model.info)
    cold = builder.chat([*history, user("Go on")], tools=tools)
    assert len(cold.text) > 75_000
    before = builder.tokenizer.tokenized_characters
    warm = builder.chat([*history, user("Go on"), assistant("Yes."), user("And now?")], tools=tools)
    assert builder.tokenizer.tokenized_characters - before <= len(warm.text) - len(cold.text)
    fresh = real_builder(smollm2_model.tokenizer, smollm2_model.info)
    again = fresh.chat([*history, user("Go on"), assistant("Yes."), user("And now?")], tools=tools)
    assert warm.prompt.tokens.tolist() == again.prompt.tokens.tolist()


def test_many_threads_get_what_one_gets(smollm2_model: Model) -> None:
    def conversation(n: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        turns = [m for k in range(n % 5 + 1) for m in (user(f"q{n % 3} {k}"), assistant(f"a{k} <|im_end|>"))]
        return [system(f"system {n % 3}"), *turns, user("¸" if n % 4 == 0 else "x")], TOOLS[: n % 3]

    def build(builder: PromptBuilder, n: int) -> tuple[list[int], Any]:
        messages, tools = conversation(n)
        prompt = builder.chat(messages, tools=tools).prompt
        return prompt.tokens.tolist(), prompt.head_position

    alone = [build(real_builder(smollm2_model.tokenizer, smollm2_model.info), n) for n in range(60)]
    shared = real_builder(smollm2_model.tokenizer, smollm2_model.info)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: build(shared, n), range(60))) == alone
