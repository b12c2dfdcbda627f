"""Whatever a client sends, the answer is a 2xx or a 4xx that names a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.api.chat import ChatBody
from anchorline.api.completions import CompletionBody
from anchorline.api.structured import ConstraintFields
from anchorline.api.thinking import REASONING_FORMATS, TEMPLATE_KWARGS
from anchorline.output.formats import FORMATS
from anchorline.prompt.builder import PromptBuilder
from anchorline.prompt.effort import EFFORTS
from anchorline.prompt.select import select_template
from tests.server.standin import ByteTokenizer
from tests.server.support import INFO, Site, site

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer", "wizard"])
CALL = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.text(max_size=4) | JSON, "arguments": st.text(max_size=8) | JSON})},
    optional={"id": st.text(max_size=9) | JSON, "type": st.just("function") | JSON},
)
MESSAGE = (
    st.fixed_dictionaries(
        {"role": ROLES | JSON},
        optional={
            "content": st.text(max_size=10) | JSON,
            "tool_calls": st.lists(CALL | JSON, max_size=2) | JSON,
            "tool_call_id": st.text(max_size=4) | JSON,
            "reasoning_content": st.text(max_size=4) | JSON,
            "name": st.text(max_size=4) | JSON,
        },
    )
    | JSON
)
TOOL = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries(
            {"name": st.sampled_from(["look", "odd"]) | JSON},
            optional={"parameters": st.dictionaries(st.text(max_size=4), JSON, max_size=2) | JSON},
        )
    },
    optional={"type": st.just("function") | JSON},
)
KEYWORD = st.sampled_from(["type", "properties", "items", "enum", "anyOf", "$ref", "pattern", "required", "x", "$defs"])
WORD = st.sampled_from(["object", "string", "array", "#/$defs/x", "[a-z]+", "("]) | st.integers(-2, 2)
SCHEMA = st.recursive(
    st.dictionaries(KEYWORD, WORD | st.lists(WORD, max_size=2), max_size=3),
    lambda inner: st.dictionaries(KEYWORD, inner | st.lists(inner, max_size=2), max_size=3),
    max_leaves=5,
)
FORMAT = st.sampled_from(["text", "json_object", "json_schema"])
GRAMMAR = st.text(alphabet='start:o=" /[a-b]+|()\n', max_size=30) | st.sampled_from(
    ['root ::= "a" | [b-c]', "start: /a+/"]
)
PLAUSIBLE = {
    "response_format": st.fixed_dictionaries(
        {"type": FORMAT}, optional={"schema": SCHEMA, "json_schema": st.fixed_dictionaries({"schema": SCHEMA | JSON})}
    )
    | JSON,
    "json_schema": SCHEMA | JSON,
    "guided_json": SCHEMA | SCHEMA.map(json.dumps) | JSON,
    "guided_regex": st.text(max_size=12) | JSON,
    "guided_choice": st.lists(st.text(max_size=4), max_size=3) | JSON,
    "structured_outputs": st.fixed_dictionaries({}, optional={"json": SCHEMA | JSON, "regex": st.text(max_size=6)})
    | JSON,
    "grammar": GRAMMAR | JSON,
    "guided_grammar": GRAMMAR | JSON,
    "messages": st.lists(MESSAGE, max_size=4) | JSON,
    "tools": st.lists(TOOL | JSON, max_size=2) | JSON,
    "tool_choice": st.sampled_from(["none", "auto", "required"]) | JSON,
    "prompt": st.text(max_size=10) | st.lists(st.integers(-5, 300), max_size=4) | JSON,
    "stop": st.text(max_size=4) | st.lists(st.text(max_size=4), max_size=3) | JSON,
    "logit_bias": st.dictionaries(st.integers(-5, 300).map(str), st.floats(-120, 120), max_size=3) | JSON,
    "n": st.integers(-1, 6) | JSON,
    "max_tokens": st.integers(-2, 2**70) | JSON,
    "stream": st.booleans(),
    "reasoning_effort": st.sampled_from([*EFFORTS, "odd"]) | JSON,
    "reasoning_format": st.sampled_from([*REASONING_FORMATS, "odd"]) | JSON,
    "chat_template_kwargs": st.dictionaries(st.sampled_from([*TEMPLATE_KWARGS, "tools"]), JSON, max_size=2) | JSON,
    "thinking_budget": st.integers(-2, 3) | JSON,
}


def bodies(struct: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the known fields, each of them absent, plausible or anything."""
    fields = {
        name: PLAUSIBLE.get(name, JSON | st.integers(-3, 3) | st.floats(-3, 3)) for name in struct.__struct_fields__
    }
    return st.fixed_dictionaries({}, optional=fields)


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    """The real prompt builder and a reply in which there is something to find."""
    tokenizer = ByteTokenizer()
    selected = select_template("hermes", INFO, tokenizer)
    prompts = PromptBuilder(tokenizer, selected, clock=datetime.now, reply_format=FORMATS["hermes"])
    with site(prompts=prompts) as running:
        running.engine.script.reply = b"(a)b[look|{}][odd|1"
        yield running


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


def check(here: Site, loop: asyncio.AbstractEventLoop, path: str, raw: bytes) -> int:
    async def post() -> tuple[int, str]:
        async with here.client() as client:
            response = await client.post(path, content=raw)
            return response.status_code, response.text

    status, text = loop.run_until_complete(post())
    assert status == 200 or 400 <= status < 500, text
    if status >= 400:
        error = json.loads(text)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    return status


@settings(max_examples=300, deadline=None)
@given(body=bodies(ChatBody))
def test_any_chat_body(here: Site, loop: asyncio.AbstractEventLoop, body: dict[str, Any]) -> None:
    check(here, loop, "/v1/chat/completions", json.dumps(body).encode())


@settings(max_examples=150, deadline=None)
@given(body=bodies(CompletionBody))
def test_any_completion_body(here: Site, loop: asyncio.AbstractEventLoop, body: dict[str, Any]) -> None:
    check(here, loop, "/v1/completions", json.dumps(body).encode())


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template"]),
    raw=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()),
)
def test_any_bytes(here: Site, loop: asyncio.AbstractEventLoop, path: str, raw: bytes) -> None:
    check(here, loop, path, raw)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_one_wrong_field_in_a_good_body(here: Site, loop: asyncio.AbstractEventLoop, data: st.DataObject) -> None:
    """Near misses: a good body in which one field is replaced, so that checks beyond the first are reached."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    assert check(here, loop, "/v1/chat/completions", json.dumps(body).encode()) == 200
    name = data.draw(st.sampled_from(sorted(set(ChatBody.__struct_fields__) - {"messages"})))
    value = data.draw(PLAUSIBLE.get(name, JSON))
    check(here, loop, "/v1/chat/completions", json.dumps(body | {name: value}).encode())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_constraint(here: Site, loop: asyncio.AbstractEventLoop, data: st.DataObject) -> None:
    """One constraint in a good body, so that it is compiled."""
    name = data.draw(
        st.sampled_from(sorted(set(ConstraintFields.__struct_fields__) & PLAUSIBLE.keys() - {"logit_bias"}))
    )
    body = {"messages": [{"role": "user", "content": "hi"}], name: data.draw(PLAUSIBLE[name])}
    check(here, loop, "/v1/chat/completions", json.dumps(body).encode())


@settings(max_examples=100, deadline=None)
@given(schemas=st.lists(SCHEMA, min_size=1, max_size=2), choice=st.sampled_from(["required", "auto"]))
def test_any_parameters_of_tools(
    here: Site, loop: asyncio.AbstractEventLoop, schemas: list[dict[str, Any]], choice: str
) -> None:
    functions = [{"name": f"f{index}", "parameters": schema} for index, schema in enumerate(schemas)]
    tools = [{"type": "function", "function": function} for function in functions]
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": choice}
    check(here, loop, "/v1/chat/completions", json.dumps(body).encode())
