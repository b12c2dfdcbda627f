"""Whatever a client sends to ``/v1/responses``, the answer is a 2xx or a 4xx that names a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.api.responses_request import ResponsesBody
from tests.server.support import Site, site
from tests.server.test_fuzz import JSON, bodies, check, loop

__all__ = ["loop"]

PATH = "/v1/responses"
TEXT = st.text(max_size=8)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image", "reasoning_text"]) | JSON},
    optional={"text": TEXT | JSON, "refusal": TEXT | JSON},
)
CONTENT = TEXT | st.lists(PART | JSON, max_size=3) | JSON
ITEM_TYPES = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "apply_patch_call",
        "item_reference",
        "web_search_call",
        "new",
    ]
)
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": ITEM_TYPES | JSON,
        "role": st.sampled_from(["user", "assistant", "system", "developer"]) | JSON,
        "content": CONTENT,
        "summary": CONTENT,
        "output": CONTENT,
        "encrypted_content": TEXT | st.just("anchorline-reasoning:!") | JSON,
        "id": TEXT | JSON,
        "call_id": TEXT | JSON,
        "name": TEXT | JSON,
        "namespace": TEXT | JSON,
        "arguments": TEXT | JSON,
        "input": TEXT | JSON,
        "action": JSON,
        "operation": JSON,
        "status": JSON,
    },
)
TOOL = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["function", "custom", "namespace", "web_search"]) | JSON,
            "name": TEXT | JSON,
            "parameters": JSON,
            "description": TEXT | JSON,
            "format": st.fixed_dictionaries({}, optional={"syntax": JSON, "definition": TEXT | JSON}) | JSON,
            "strict": JSON,
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("namespace"), "name": TEXT, "tools": st.lists(inner, max_size=2)}
    ),
    max_leaves=3,
)
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "input": TEXT | st.lists(ITEM, max_size=4) | JSON,
    "tools": st.lists(TOOL, max_size=3) | JSON,
    "tool_choice": st.sampled_from(["auto", "none", "required"])
    | st.fixed_dictionaries(
        {},
        optional={"type": st.sampled_from(["function", "custom", "allowed_tools"]), "name": TEXT | JSON, "mode": JSON},
    )
    | JSON,
    "text": st.fixed_dictionaries({}, optional={"format": JSON | st.fixed_dictionaries({"type": st.just("text")})})
    | JSON,
    "reasoning": st.fixed_dictionaries({}, optional={"effort": st.just("low") | JSON}) | JSON,
    "include": st.lists(st.sampled_from(["reasoning.encrypted_content", "message.output_text.logprobs"]), max_size=2)
    | JSON,
    "metadata": st.dictionaries(TEXT, TEXT | JSON, max_size=2) | JSON,
    "stream": st.booleans(),
    "store": st.booleans() | JSON,
    "max_output_tokens": st.integers(-2, 2**70) | JSON,
}


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    with site() as running:
        running.engine.script.reply = b"(a)b[look|{}][odd|1"
        yield running


@settings(max_examples=150, deadline=None)
@given(body=bodies(ResponsesBody))
def test_any_body(here: Site, loop: asyncio.AbstractEventLoop, body: dict[str, Any]) -> None:
    check(here, loop, PATH, json.dumps(body).encode())


@settings(max_examples=150, deadline=None)
@given(raw=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(here: Site, loop: asyncio.AbstractEventLoop, raw: bytes) -> None:
    check(here, loop, PATH, raw)


@settings(max_examples=400, deadline=None)
@given(items=st.lists(ITEM, max_size=5))
def test_any_items(here: Site, loop: asyncio.AbstractEventLoop, items: list[dict[str, Any]]) -> None:
    check(here, loop, PATH, json.dumps({"input": items}).encode())


@settings(max_examples=400, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(PLAUSIBLE)))
def test_one_odd_field_in_a_good_body(
    here: Site, loop: asyncio.AbstractEventLoop, data: st.DataObject, name: str
) -> None:
    """Near misses, so that checks beyond the first are reached; what was kept can be gone on from."""
    body = {"input": "hi", name: data.draw(PLAUSIBLE[name])}
    check(here, loop, PATH, json.dumps(body).encode())
