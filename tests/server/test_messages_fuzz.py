"""Whatever a client sends to the Messages endpoints, the answer is a 2xx or a 4xx that names a reason."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.api.messages import MessagesBody
from tests.server.support import Site
from tests.server.test_fuzz import JSON, here, loop

__all__ = ["here", "loop"]  # fixtures

PATHS = st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"])
TEXT = st.text(max_size=6)
MARK = st.none() | st.just({"type": "ephemeral", "ttl": "1h"}) | JSON


def block(kind: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A block whose parts may be missing or anything."""
    odd = {name: part | JSON for name, part in parts.items()}
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=odd | {"cache_control": MARK})


INNER = block("text", text=TEXT) | block("image") | block("tool_reference", tool_name=TEXT) | JSON
BLOCK = (
    block("text", text=TEXT)
    | block("thinking", thinking=TEXT, signature=TEXT)
    | block("redacted_thinking", data=TEXT)
    | block("tool_use", id=TEXT, name=TEXT, input=st.dictionaries(TEXT, JSON, max_size=2))
    | block("tool_result", tool_use_id=TEXT, content=TEXT | st.lists(INNER, max_size=2), is_error=st.booleans())
    | block("server_tool_use", id=TEXT)
    | block("document", source=JSON)
    | st.fixed_dictionaries({"type": JSON})
    | JSON
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | JSON, "content": TEXT | st.lists(BLOCK, max_size=3)}
)
TOOL = block("custom", name=TEXT, description=TEXT, input_schema=JSON) | block("bash_20250124", name=TEXT) | JSON
SCHEMA_FORMAT = st.fixed_dictionaries({"type": st.just("json_schema"), "schema": JSON})
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(MESSAGE, min_size=1, max_size=3),
    "system": TEXT | st.lists(block("text", text=TEXT), max_size=2),
    "tools": st.lists(TOOL, max_size=2),
    "tool_choice": block("auto") | block("any") | block("tool", name=TEXT) | block("none"),
    "thinking": block("enabled", budget_tokens=st.integers()) | block("adaptive", display=TEXT) | block("disabled"),
    "output_config": st.fixed_dictionaries({}, optional={"effort": TEXT, "format": SCHEMA_FORMAT | JSON}),
    "stop_sequences": st.lists(TEXT, max_size=3),
    "max_tokens": st.integers(-2, 2**70) | st.floats(-1, 10),
    "stream": st.booleans(),
}


def check(here: Site, loop: asyncio.AbstractEventLoop, path: str, raw: bytes) -> int:
    async def post() -> tuple[int, str, str]:
        async with here.client() as client:
            response = await client.post(path, content=raw)
            return response.status_code, response.text, response.headers["request-id"]

    status, text, request_id = loop.run_until_complete(post())
    assert status == 200 or 400 <= status < 500, text
    if status >= 400:
        body = json.loads(text)
        assert set(body) == {"type", "error", "request_id"}
        assert (body["type"], body["request_id"]) == ("error", request_id)
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["message"]
    return status


@settings(max_examples=300, deadline=None)
@given(
    path=PATHS,
    body=st.fixed_dictionaries(
        {"messages": PLAUSIBLE["messages"], "max_tokens": st.integers(1, 50)},
        optional={
            name: PLAUSIBLE.get(name, JSON | st.integers(-3, 3) | st.floats(-3, 3)) | JSON
            for name in MessagesBody.__struct_fields__
            if name not in ("messages", "max_tokens")
        },
    ),
)
def test_any_body(here: Site, loop: asyncio.AbstractEventLoop, path: str, body: dict[str, Any]) -> None:
    check(here, loop, path, json.dumps(body).encode())


@settings(max_examples=300, deadline=None)
@given(path=PATHS, data=st.data())
def test_one_odd_field_in_a_good_body(
    here: Site, loop: asyncio.AbstractEventLoop, path: str, data: st.DataObject
) -> None:
    """Near misses, so that checks beyond the first are reached."""
    good: dict[str, Any] = {
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "f", "input_schema": {}}],
    }
    assert check(here, loop, path, json.dumps(good).encode()) == 200
    name = data.draw(st.sampled_from(sorted(PLAUSIBLE)))
    check(here, loop, path, json.dumps(good | {name: data.draw(PLAUSIBLE[name] | JSON)}).encode())


@settings(max_examples=100, deadline=None)
@given(path=PATHS, raw=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(here: Site, loop: asyncio.AbstractEventLoop, path: str, raw: bytes) -> None:
    check(here, loop, path, raw)
