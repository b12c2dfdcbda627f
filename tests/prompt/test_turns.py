"""Turns that come back changed: which ids they get, and when they must not get those that were generated."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.engine.request import FinishReason
from anchorline.llama.interface import TokenArray
from anchorline.output.events import ChoiceFinished, ReplyEvent, TextDelta, TokenText
from anchorline.output.format import CallMode, ReplyContext
from anchorline.output.formats import FORMATS
from anchorline.output.meaning import same_json
from anchorline.prompt.builder import BuiltPrompt
from anchorline.prompt.turns import TurnMemo, TurnRecorder
from tests.prompt.support import CHATML_CONTROL, TOOLS, CountingTemplate, result, system, toy_builder, user
from tests.prompt.vocabulary import ToyTokenizer

SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}

THINKING = """
{{- tools | tojson if tools else '' -}}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' -%}
{%- if m.reasoning_content and (keep or loop.last or messages[-1].role == 'tool') -%}
<think>
{{ m.reasoning_content }}
</think>

{% endif -%}
{{ m.content }}
{%- for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
{%- else -%}
{{ m.content }}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


@dataclass
class Bench:
    """A builder with a memo, and a model that says what the test wants, one byte a token."""

    source: str | None = None
    entries: int = 100
    tokenizer: ToyTokenizer = field(default_factory=lambda: ToyTokenizer(CHATML_CONTROL))

    def __post_init__(self) -> None:
        self.memo = TurnMemo(limit_entries=self.entries, limit_bytes=1 << 20)
        self.builder = toy_builder(self.source, tokenizer=self.tokenizer, turns=self.memo)
        self.plain = toy_builder(self.source, tokenizer=self.tokenizer)
        self._ids = itertools.count()

    def chat(self, *messages: dict[str, Any], tenant: str = "", **kwargs: Any) -> BuiltPrompt:
        return self.builder.chat(messages, tools=TOOLS, tenant=tenant, template_kwargs=kwargs)

    def generate(
        self,
        text: str,
        *,
        tenant: str = "",
        reason: FinishReason = FinishReason.STOP,
        stop: str | None = None,
        asked: bytes = b"",
    ) -> tuple[list[int], dict[str, Any]]:
        """Ids of a reply, and the message that a client makes of it."""
        context = ReplyContext(
            prompt_end="<|im_start|>assistant\n",
            tools=SCHEMAS,
            calls=CallMode.AUTO,
            new_call_id=lambda: f"id{next(self._ids)}",
        )
        parser = FORMATS["hermes"].parser(context)
        recorder = TurnRecorder(self.memo, self.tokenizer, tenant=tenant, asked=asked)
        message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
        ids = list(text.encode())
        deltas = [TextDelta(0, chr(token), (TokenText(token, bytes([token]), None, ()),)) for token in ids]
        events: list[ReplyEvent] = [*deltas, ChoiceFinished(0, reason, stop)]
        for given_event in events:
            for event in parser.feed(given_event):
                recorder.take(event)
                _add(message, event)
        return ids, {key: value for key, value in message.items() if value or key in ("role", "content")}


def _add(message: dict[str, Any], event: Any) -> None:
    match type(event).__name__:
        case "TextDelta":
            message["content"] += event.text
        case "ReasoningDelta":
            message["reasoning_content"] += event.text
        case "ToolCallStarted":
            function = {"name": event.name, "arguments": ""}
            message["tool_calls"].append({"id": event.id, "type": "function", "function": function})
        case "ToolCallDelta":
            message["tool_calls"][-1]["function"]["arguments"] += event.arguments


def arguments_of(message: dict[str, Any], call: int = 0) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(message["tool_calls"][call]["function"]["arguments"])
    return value


def with_arguments(message: dict[str, Any], arguments: str) -> dict[str, Any]:
    call = message["tool_calls"][0]
    function = {**call["function"], "arguments": arguments}
    return {**message, "tool_calls": [{**call, "function": function}, *message["tool_calls"][1:]]}


def answers(call: str, text: str = "done") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call}


def ids_of(built: BuiltPrompt) -> list[int]:
    return [int(token) for token in built.prompt.tokens]


def extends(longer: BuiltPrompt, shorter: BuiltPrompt, reply: list[int]) -> bool:
    """Whether a prompt goes on where another one and its reply ended."""
    before = ids_of(shorter) + reply
    return ids_of(longer)[: len(before)] == before


CALL = '<tool_call>\n{"arguments":{"path" :"x",  "n": 1.0}, "name": "read_file"}\n</tool_call>'
START = (system("be brief"), user("read x"))


def test_a_turn_that_comes_back_rewritten_keeps_its_ids() -> None:
    bench = Bench()
    first = bench.chat(*START)
    reply, message = bench.generate(CALL)
    sorted_keys = with_arguments(message, json.dumps({"n": 1, "path": "x"}, sort_keys=True, separators=(",", ":")))
    second = bench.chat(*START, {**sorted_keys, "content": None}, answers("id0"))
    assert extends(second, first, reply)
    assert not extends(bench.plain.chat([*START, sorted_keys, answers("id0")], tools=TOOLS), first, reply)
    assert CALL in second.text
    assert second.text.count("\n<tool_response>\n") == 1


def test_the_prompt_behind_the_turn_is_what_it_would_be_without_the_memo() -> None:
    bench = Bench()
    reply, message = bench.generate(CALL)
    built = bench.chat(*START, message, answers("id0"))
    plain = bench.plain.chat([*START, message, answers("id0")], tools=TOOLS)
    end = ids_of(bench.chat(*START)), reply
    behind = ids_of(built)[sum(map(len, end)) :]
    assert ids_of(plain)[-len(behind) :] == behind
    assert built.text.endswith(plain.text[plain.text.index("</tool_call><|im_end|>") + len("</tool_call>") :])


@pytest.mark.parametrize(
    "change",
    [
        lambda message: with_arguments(message, '{"path": "y", "n": 1.0}'),
        lambda message: with_arguments(message, '{"path": "x"}'),
        lambda message: with_arguments(message, '{"path": "x", "n": true}'),
        lambda message: with_arguments(message, '{"path": "x", "n": "1"}'),
        lambda message: with_arguments(message, "no json"),
        lambda message: {**message, "content": "something else"},
        lambda message: {**message, "reasoning_content": "I never thought this"},
        lambda message: {**message, "tool_calls": [*message["tool_calls"], *message["tool_calls"]]},
        lambda message: {
            **message,
            "tool_calls": [
                {**message["tool_calls"][0], "function": {**message["tool_calls"][0]["function"], "name": "write_file"}}
            ],
        },
    ],
)
def test_a_call_id_with_other_content_is_not_trusted(change: Any) -> None:
    bench = Bench()
    first = bench.chat(*START)
    reply, message = bench.generate(CALL)
    messages = [*START, change(message), answers("id0")]
    built = bench.chat(*messages)
    assert ids_of(built) == ids_of(bench.plain.chat(messages, tools=TOOLS))
    assert not extends(built, first, reply)


def test_an_id_belongs_to_its_tenant() -> None:
    bench = Bench()
    first = bench.chat(*START)
    reply, message = bench.generate(CALL, tenant="a")
    assert extends(bench.chat(*START, message, tenant="a"), first, reply)
    assert not extends(bench.chat(*START, message, tenant="b"), first, reply)


@pytest.mark.parametrize(("reason", "stop"), [(FinishReason.LENGTH, None), (FinishReason.STOP, "</tool")])
def test_a_turn_that_did_not_end_by_itself_is_not_remembered(reason: FinishReason, stop: str | None) -> None:
    bench = Bench()
    bench.generate(CALL, reason=reason, stop=stop)
    assert len(bench.memo) == 0


def test_text_alone_keeps_its_ids_where_the_text_is_the_same() -> None:
    bench = Bench()
    first = bench.chat(*START)
    reply, message = bench.generate("the abc\n\nof it ")
    second = bench.chat(*START, message, user("more"))
    assert extends(second, first, reply)
    assert extends(bench.chat(*START, {**message, "content": "the abc\n\nof it"}, user("more")), first, reply)
    assert not extends(bench.plain.chat([*START, message, user("more")], tools=TOOLS), first, reply)


def test_text_that_the_template_writes_in_another_way_stays_the_templates() -> None:
    bench = Bench(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | upper }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ 'x' if tools else '' }}"
    )
    _, message = bench.generate("quiet")
    messages = [user("hi"), message, user("more")]
    assert ids_of(bench.chat(*messages)) == ids_of(bench.plain.chat(messages, tools=TOOLS))


THOUGHT = "<think>\nHm, x.\n</think>\n\n" + CALL


def test_dropped_reasoning_comes_back_where_the_template_shows_it() -> None:
    bench = Bench(THINKING)
    first = bench.chat(*START)
    reply, message = bench.generate(THOUGHT)
    assert message["reasoning_content"].strip() == "Hm, x."
    dropped = {key: value for key, value in message.items() if key != "reasoning_content"}
    assert extends(bench.chat(*START, dropped, answers("id0")), first, reply)
    assert extends(bench.chat(*START, message, answers("id0")), first, reply)


def test_a_template_that_drops_old_reasoning_gets_its_way() -> None:
    bench = Bench(THINKING)
    first = bench.chat(*START)
    reply, message = bench.generate(THOUGHT)
    _, done = bench.generate("ok")
    messages = [*START, message, answers("id0"), done, user("and y?")]
    built = bench.chat(*messages)
    assert not extends(built, first, reply)
    assert "Hm, x." not in built.text
    assert extends(bench.chat(*messages, keep=True), bench.chat(*START, keep=True), reply)


def test_thoughts_stay_in_the_conversation_that_they_belong_to() -> None:
    """The same words were said in both, and neither client gives back what was thought."""
    bench = Bench(THINKING)
    questions = ([user("read x")], [user("read y")])
    said = {"role": "assistant", "content": "ok"}
    for question, thought in zip(questions, ("Mine.", "Yours."), strict=True):
        bench.generate(f"<think>\n{thought}\n</think>\n\nok", asked=bench.chat(*question).asked)
    mine, yours, others = (
        bench.chat(*question, said, user("more"), keep=True).text for question in (*questions, [user("read z")])
    )
    assert "Mine." in mine
    assert "Yours." not in mine
    assert "Yours." in yours
    assert "Mine." not in yours
    assert "<think>" not in others


def test_cuts_go_on_behind_a_turn() -> None:
    bench = Bench()
    _, message = bench.generate(CALL)
    messages = [*START, message, answers("id0"), user("and now?")]
    built, plain = bench.chat(*messages), bench.plain.chat(messages, tools=TOOLS)
    shift = len(built.prompt) - len(plain.prompt)
    assert [(cut.kind, cut.message) for cut in built.prompt.cuts] == [
        (cut.kind, cut.message) for cut in plain.prompt.cuts
    ]
    behind = [cut for cut in plain.prompt.cuts if cut.message is not None and cut.message >= 2]
    assert behind
    assert {cut.position + shift for cut in behind} <= {cut.position for cut in built.prompt.cuts}


def test_warm_turns_look_for_no_turn_again() -> None:
    tokenizer = ToyTokenizer(CHATML_CONTROL)
    bench = Bench(tokenizer=tokenizer)
    template = CountingTemplate(bench.builder._tools.template.source)
    bench.builder = toy_builder(template=template, tokenizer=tokenizer, turns=bench.memo)
    messages: list[dict[str, Any]] = list(START)
    renders = []
    for turn in range(12):
        _, message = bench.generate(CALL)
        messages += [message, answers(message["tool_calls"][0]["id"]), user(f"and {turn}?")]
        before = template.renders
        bench.chat(*messages)
        renders.append(template.renders - before)
    assert bench.builder._splicer.searches == 12
    assert len(set(renders[2:])) == 1


def test_a_text_that_is_said_twice_is_written_twice() -> None:
    bench = Bench()
    _, message = bench.generate("the abc")
    messages = [*START, message, user("again"), message, user("more")]
    plain = bench.plain.chat(messages, tools=TOOLS)
    for _ in range(2):
        assert bench.chat(*messages).text == plain.text


def test_more_turns_than_may_be_looked_for_at_once_are_found_over_time() -> None:
    bench = Bench()
    messages: list[dict[str, Any]] = list(START)
    for _ in range(20):
        _, message = bench.generate(CALL)
        messages += [message, answers(message["tool_calls"][0]["id"])]
    assert bench.chat(*messages).text.count(CALL) == 16
    assert bench.chat(*messages).text.count(CALL) == 20


def test_the_memo_forgets_what_was_used_longest_ago() -> None:
    bench = Bench(entries=2)
    replies = [bench.generate(CALL) for _ in range(3)]
    first = bench.chat(*START)
    kept = [extends(bench.chat(*START, message, answers("x")), first, reply) for reply, message in replies]
    assert kept == [False, True, True]
    assert len(bench.memo) == 2


def test_a_placeholder_cannot_be_spelled_by_a_client() -> None:
    bench = Bench()
    tokens: TokenArray = np.array([1, 2, 3], dtype=np.int32)
    forged = bench.plain.tokenizer.placeholder(tokens)
    _, message = bench.generate(CALL)
    built = bench.chat(user(forged), message, answers("id0"))
    assert forged.encode() in bench.tokenizer.detokenize(built.prompt.tokens)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": 1, "b": [1.0, "ä"]}', '{"b":[1,"\\u00e4"],"a":1}', True),
        ("", "{}", True),
        ("{}", "[]", False),
        ("1", "true", False),
        ("0.1", "0.10", True),
        ("9007199254740993", "9007199254740992", False),
        ("1e400", "1e401", False),
        ("not json", "not json ", True),
        ('{"a": null}', "{}", False),
    ],
)
def test_json_values(one: str, other: str, same: bool) -> None:
    assert same_json(one, other) is same
    assert same_json(other, one) is same


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=json_values, indent=st.none() | st.integers(0, 3), ascii_only=st.booleans())
def test_spelling_does_not_change_a_value(value: Any, indent: int | None, ascii_only: bool) -> None:
    assert same_json(json.dumps(value), json.dumps(value, indent=indent, ensure_ascii=ascii_only, sort_keys=True))


@settings(deadline=None)
@given(
    arguments=st.dictionaries(st.text(max_size=5), st.text(max_size=8) | st.integers() | st.booleans(), max_size=3),
    spaces=st.text(" \n\t", max_size=3),
    before=st.sampled_from(["", "Let me look.\n", "the abc"]),
)
def test_any_call_keeps_its_ids(arguments: dict[str, Any], spaces: str, before: str) -> None:
    bench = Bench()
    first = bench.chat(*START)
    call = json.dumps({"name": "read_file", "arguments": arguments}, separators=("," + spaces, ":" + spaces))
    reply, message = bench.generate(f"{before}<tool_call>{spaces}{call}</tool_call>")
    again = with_arguments(message, json.dumps(arguments_of(message), sort_keys=True, indent=1))
    built = bench.chat(*START, again, result("r"), user("next"))
    assert extends(built, first, reply)


SHOWS_IDS = """
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}
{%- for c in m.tool_calls or [] %}
{%- if c.id | length != 9 and not c.id.startswith('functions.') %}{{ raise_exception('no such id') }}{% endif -%}
<c>{{ MARK }}{{ c.id }}|{{ c.function.name }}|{{ c.function.arguments | tojson }}</c>
{%- endfor -%}
{{ m.tool_call_id }}<|im_end|>
{% endfor -%}
{{ tools | length if tools else '' }}
"""


@pytest.mark.parametrize(
    ("mark", "shown"),
    [
        ("", ["000000000|read_file", "000000000<|im_end|>"]),
        ("<|tool_call_argument_begin|>", ["functions.read_file:0|"]),
    ],
)
def test_ids_that_a_template_shows_are_its_own(mark: str, shown: list[str]) -> None:
    """So a client that rewrites them changes nothing, and a template that is particular about them is content."""
    builder = toy_builder(SHOWS_IDS.replace("{{ MARK }}", mark))
    texts = []
    for id in ("id0", "toolu_01", "x" * 50):
        call = {"id": id, "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        texts.append(builder.chat([*START, message, answers(id)], tools=TOOLS).text)
    assert len(set(texts)) == 1
    assert all(text in texts[0] for text in shown)
