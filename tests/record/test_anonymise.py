"""Bodies in other words: what begins alike still does, to the byte, and nothing that was said is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from string import ascii_letters
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anchorline.api.chat import ChatBody
from anchorline.api.completions import CompletionBody
from anchorline.api.messages import MessagesBody
from anchorline.api.responses_request import ResponsesBody
from anchorline.bench.trace import read_trace
from anchorline.prompt.effort import EFFORTS
from anchorline.record.anonymise import Anonymiser, Unrecordable
from anchorline.record.protocol import PROTOCOL, SCHEMA
from tests.record.support import KEY, common, encoded, texts, words

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"

PIECES = (
    *("secret", "Secrets", "user", "users", "string", "true", "nul", "type", "data", "x", "_", " ", "\n", ":", "/"),
    *(
        "<think>",
        "</thinker>",
        "<title>",
        "x-anthropic-billing-header: cc",
        "data:image/png;base64,aGk=",
        "https://a.b",
    ),
    *(
        '"\\u5b',
        "c6",
        '{"path": "a\\n',
        "\\u00e9t\\u00",
        '\\u5bc6\\u7801"}',
        "[1, -20.5e3, true",
        "\\d{4}[a-z]",
        "#/$defs/",
        "0",
        "17",
    ),
    *("é", "Ünïted", "密码", "암호", "пароль", "سر", "٣", "𝒜", "🔒", "\u0301", "²", "ª"),
)
TEXT = st.lists(st.sampled_from(PIECES) | st.text(ascii_letters, max_size=3) | st.text(max_size=3), max_size=6).map(
    "".join
)

PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "content": lambda text: {"messages": [{"role": "user", "content": text}, {"role": "assistant"}]},
    "role": lambda text: {"messages": [{"role": text, "content": "a"}]},
    "block": lambda text: {"messages": [{"content": [{"type": "text", "text": text}]}]},
    "arguments": lambda text: {"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": text}}]}]},
    "tool input": lambda text: {"messages": [{"content": [{"type": "tool_use", "input": {"a": [text]}}]}]},
    "argument name": lambda text: {"messages": [{"content": [{"type": "tool_use", "input": {text: 1}}]}]},
    "image": lambda text: {"messages": [{"content": [{"image_url": {"url": text}}]}]},
    "image data": lambda text: {"messages": [{"content": [{"source": {"data": text}}]}]},
    "tool name": lambda text: {"tools": [{"function": {"name": text}}], "tool_choice": text},
    "keyword": lambda text: {"tools": [{"parameters": {text: "a"}}]},
    "property": lambda text: {
        "tools": [{"parameters": {"properties": {text: {"type": "string"}}, "required": [text]}}]
    },
    "schema type": lambda text: {"tools": [{"parameters": {"type": [text, "null"]}}]},
    "pattern": lambda text: {"tools": [{"parameters": {"pattern": text, "patternProperties": {text: {}}}}]},
    "reference": lambda text: {"tools": [{"parameters": {"$ref": text}}]},
    "default": lambda text: {"tools": [{"parameters": {"default": {text: text}}}]},
    "grammar": lambda text: {"grammar": text},
    "field": lambda text: {text: "a"},
    "metadata": lambda text: {"metadata": {text: text}},
}


@pytest.fixture
def anonymiser() -> Anonymiser:
    return Anonymiser(KEY)


@pytest.mark.parametrize("place", PLACES)
@given(shared=TEXT, left=TEXT, right=TEXT)
@example(shared='"\\u5b', left='c6"', right='"')
def test_texts_part_at_the_same_byte(place: str, shared: str, left: str, right: str) -> None:
    anonymiser = Anonymiser(KEY)
    before = [PLACES[place](shared + end) for end in (left, right)]
    after = [anonymiser.body(body) for body in before]
    assert common(*map(encoded, after)) == common(*map(encoded, before))
    assert [len(encoded(body)) for body in after] == [len(encoded(body)) for body in before]


KEYS = st.sampled_from(
    ["messages", "content", "input", "tools", "parameters", "properties", "arguments", "type", "url", "data", "default"]
)
SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**12) | st.floats(-1e307, 1e307)
VALUES = st.recursive(
    SCALARS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXT, inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(KEYS | TEXT, VALUES, max_size=3)


@given(left=BODIES, right=BODIES)
def test_any_bodies_part_at_the_same_byte(left: dict[str, Any], right: dict[str, Any]) -> None:
    anonymiser = Anonymiser(KEY)
    assert common(encoded(anonymiser.body(left)), encoded(anonymiser.body(right))) == common(
        encoded(left), encoded(right)
    )


@given(body=BODIES)
def test_texts_keep_their_bytes_and_their_order(body: dict[str, Any]) -> None:
    after = msgspec.json.decode(encoded(Anonymiser(KEY).body(body)))
    assert [len(text.encode()) for text in texts(after)] == [len(text.encode()) for text in texts(body)]


LETTERS = st.text(st.characters(categories=["Lu", "Ll"], codec="latin-1"), min_size=4, max_size=30)


@given(said=st.lists(LETTERS, min_size=1, max_size=5))
def test_no_word_is_left(said: list[str]) -> None:
    body = {"messages": [{"role": "user", "content": " ".join(said)}]}
    content = Anonymiser(KEY).body(body)["messages"][0]["content"]
    assert not words(content) & words(" ".join(said))


def test_words_that_were_said_are_avoided_as_replacements() -> None:
    """So many words of four letters that some would turn into others by chance."""
    said = [first + second + ending for first in "bcdfgklmnprst" for second in "aeiou" for ending in ("nd", "st", "ll")]
    for number in range(20):
        body = {"messages": [{"role": "user", "content": " ".join(said)}]}
        assert not words(Anonymiser(bytes([number])).body(body)["messages"]) & set(said)


def test_equal_words_stay_equal_wherever_they_stand(anonymiser: Anonymiser) -> None:
    body = {
        "messages": [
            {"role": "user", "content": "Weather in Paris? weather, WEATHER"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "call_7ab", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}],
            },
            {"role": "tool", "tool_call_id": "call_7ab", "content": '{"city":"Paris"}'},
        ],
        "tools": [{"function": {"name": "weather", "parameters": {"properties": {"city": {}}, "required": ["city"]}}}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }
    after = anonymiser.body(body)
    asked, called, answered = after["messages"]
    weather = after["tools"][0]["function"]["name"]
    schema = after["tools"][0]["function"]["parameters"]
    (city,) = schema["properties"]
    paris = json.loads(called["tool_calls"][0]["function"]["arguments"])[city]
    assert weather != "weather"
    assert weather.islower()
    assert asked["content"].endswith(f"{paris}? {weather}, {weather.upper()}")
    assert asked["content"].startswith(weather.capitalize())
    assert called["tool_calls"][0]["function"]["name"] == after["tool_choice"]["function"]["name"] == weather
    assert schema["required"] == [city]
    assert called["tool_calls"][0]["id"] == answered["tool_call_id"] != "call_7ab"
    assert json.loads(answered["content"]) == {city: paris}


@given(value=VALUES)
def test_arguments_stay_json_of_the_same_shape(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        after = json.loads(Anonymiser(KEY).json_text(text))
        assert shape(after) == shape(value)


def shape(value: Any) -> Any:
    """Containers and kinds of what they hold; true, false and null stay themselves."""
    if isinstance(value, dict):
        return [shape(item) for item in value.values()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return value if value is None or isinstance(value, bool) else type(value)


def test_escaped_letters_are_replaced_too(anonymiser: Anonymiser) -> None:
    before = json.dumps({"名": "密码 пароль"})
    after = anonymiser.json_text(before)
    assert not set(json.loads(after)) & {"名"}
    assert not words(json.loads(after)) & words(json.loads(before))
    assert not set("密码парль") & set("".join(texts(json.loads(after))))


def test_what_a_schema_says_stays(anonymiser: Anonymiser) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "description": "Which kind", "maxLength": 20},
            "where": {"$ref": "#/$defs/Place"},
        },
        "required": ["type"],
        "additionalProperties": False,
        "$defs": {"Place": {"enum": ["inside", "outside"], "pattern": r"^\w+[a-z]{2,5}$"}},
    }
    after = anonymiser.body({"tools": [{"name": "f", "input_schema": schema}]})["tools"][0]["input_schema"]
    assert list(after) == list(schema)
    kind, where = after["properties"]
    (place,) = after["$defs"]
    assert "type" not in after["properties"]
    assert after["properties"][kind]["type"] == ["string", "null"]
    assert after["properties"][kind]["maxLength"] == 20
    assert after["properties"][where] == {"$ref": f"#/$defs/{place}"}
    assert after["required"] == [kind]
    assert after["$defs"][place]["pattern"] == r"^\w+[a-z]{2,5}$"
    assert not words(after["$defs"][place]["enum"]) & {"inside", "outside"}


def test_markers_that_servers_look_for_stay(anonymiser: Anonymiser) -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1"
    (block,) = anonymiser.body({"system": [{"type": "text", "text": billing}]})["system"]
    assert block["text"].startswith("x-anthropic-billing-header: ")
    assert "version" not in block["text"]
    thought = anonymiser.text("<think>think</think>")
    assert thought.startswith("<think>")
    assert thought.endswith("</think>")
    assert thought != "<think>think</think>"


def test_an_image_keeps_its_size_and_where_it_differs(anonymiser: Anonymiser) -> None:
    head = "data:image/png;base64,"
    picture = "iVBORw0KGgo" * 20
    other = picture[:100] + "X" + picture[101:]

    def content(payload: str) -> str:
        part = {"type": "image_url", "image_url": {"url": head + payload}}
        after = anonymiser.body({"messages": [{"content": [part]}]})["messages"][0]["content"][0]["image_url"]["url"]
        assert isinstance(after, str)
        return after

    first, second = content(picture), content(other)
    assert first.startswith(head)
    assert len(first) == len(head + picture)
    assert first[len(head) : len(head) + 11] != first[len(head) + 11 : len(head) + 22]
    assert common(first.encode(), second.encode()) == len(head) + 100


@pytest.mark.parametrize("place", ["input", "arguments", "unknown"])
def test_numbers_that_a_person_chose_are_replaced(anonymiser: Anonymiser, place: str) -> None:
    call = {"type": "tool_use", place: {"account": 48150162, "share": 0.25, "sure": True}}
    body = {"max_tokens": 512, "temperature": 0.25, "messages": [{"role": "assistant", "content": [call]}]}
    after = msgspec.json.decode(encoded(anonymiser.body(body)))
    account, share, sure = [*after["messages"][0]["content"][0].values()][1].values()
    assert account != 48150162
    assert len(str(account)) == 8
    assert share != 0.25
    assert sure is True
    assert (after["max_tokens"], after["temperature"]) == (512, 0.25)


def test_another_key_gives_other_words() -> None:
    text = "the quick brown fox jumps over the lazy dog"
    assert Anonymiser(b"one").text(text) != Anonymiser(b"two").text(text)
    assert Anonymiser(b"one").text(text) == Anonymiser(b"one").text(text)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"prompt": [1, 2, 3]}, "token ids"),
        ({"prompt": [[1, 2], [3]]}, "token ids"),
        ({"metadata": {"a": 1e308}}, "so large"),
    ],
)
def test_what_cannot_be_replaced_is_refused(anonymiser: Anonymiser, body: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unrecordable, match=reason):
        anonymiser.body(body)


def test_fields_that_this_server_reads_stay() -> None:
    fields = {
        name
        for body in (ChatBody, CompletionBody, MessagesBody, ResponsesBody)
        for name in body.__struct_encode_fields__
    }
    assert {name for name in (*fields, *EFFORTS) if PROTOCOL.walk(name) < len(name)} == set()


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")
@pytest.mark.parametrize("name", ["claude-code", "cline", "codex", "langgraph", "openai-agents-responses", "pi"])
def test_recorded_traces_keep_every_shared_beginning_and_no_word(name: str, anonymiser: Anonymiser) -> None:
    before = [request.body for request in read_trace(RECORDED / f"{name}.jsonl").requests]
    after = [anonymiser.body(body) for body in before]
    old, new = [*map(encoded, before)], [*map(encoded, after)]
    assert [len(line) for line in new] == [len(line) for line in old]
    assert [common(new[i], new[j]) for i in range(len(new)) for j in range(i)] == [
        common(old[i], old[j]) for i in range(len(old)) for j in range(i)
    ]
    said = set().union(*(words(body) for body in before))
    left = said & set().union(*(words(msgspec.json.decode(line)) for line in new))
    protocol = {word for kept in (PROTOCOL, SCHEMA) for text in kept.beginnings for word in words(text)}
    assert left <= protocol | {"anthropic", "billing", "header", "true", "false", "null"}
