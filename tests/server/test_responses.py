"""``/v1/responses`` over ASGI: whole, streamed, kept and forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from anchorline.config import ServerConfig
from anchorline.errors import EngineFailure
from anchorline.limits import Limits
from tests.server.support import Site, site
from tests.support.responses_sdk import check_items, check_response, events_of

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent / "golden"
PATH = "/v1/responses"


async def post(here: Site, *, key: str = "", **fields: Any) -> httpx.Response:
    async with here.client(authorization=f"Bearer {key}") as client:
        return await client.post(PATH, json={"input": "hi"} | fields)


async def call(here: Site, method: str, path: str, *, key: str = "") -> httpx.Response:
    async with here.client(authorization=f"Bearer {key}") as client:
        return await client.request(method, f"{PATH}/{path}")


def prompt_of(here: Site) -> str:
    return bytes(here.engine.submitted[-1].prompt.tokens.tolist()).decode()


async def test_a_whole_reply_is_shaped_as_openai_has_it(here: Site) -> None:
    response = await post(here, instructions="be brief", max_output_tokens=5)
    assert response.status_code == 200
    reply = check_response(response.json())
    assert (reply.output_text, reply.status) == ("Hello", "incomplete")
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.id.startswith("resp_")
    assert reply.usage is not None
    assert reply.usage.input_tokens_details.cached_tokens == 12
    assert prompt_of(here) == "system: be brief\nuser: hi\nassistant:"


@pytest.mark.parametrize("name", ["responses", "responses_logprobs", "responses_incomplete"])
async def test_the_stream_is_the_golden_transcript(here: Site, name: str) -> None:
    here.engine.script.reply = "Héy".encode()
    fields: dict[str, Any] = {"stream": True}
    if name == "responses_logprobs":
        fields |= {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    elif name == "responses_incomplete":
        fields |= {"max_output_tokens": 1, "store": False}
    response = await post(here, **fields)
    assert response.headers["content-type"].startswith("text/event-stream")
    events_of(response.content)
    assert response.text == (GOLDEN / f"{name}.sse").read_text()


async def test_a_response_is_kept_and_forgotten(here: Site) -> None:
    made = (await post(here)).json()
    assert (await call(here, "GET", made["id"])).json() == made
    gone = await call(here, "DELETE", made["id"])
    assert gone.json() == {"id": made["id"], "object": "response", "deleted": True}
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        answer = await call(here, method, made["id"] + path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"


async def test_a_response_that_shall_not_be_kept_is_not(here: Site) -> None:
    whole = (await post(here, store=False)).json()
    streamed = events_of((await post(here, store=False, stream=True)).content)[-1]["response"]
    for made in (whole, streamed):
        assert (await call(here, "GET", made["id"])).status_code == 404


async def test_a_conversation_goes_on(here: Site) -> None:
    first = (await post(here, instructions="old")).json()
    second = events_of((await post(here, previous_response_id=first["id"], input="and?", stream=True)).content)
    assert prompt_of(here) == "user: hi\nassistant: Hello, world\nuser: and?\nassistant:"
    last = second[-1]["response"]
    assert last["previous_response_id"] == first["id"]
    assert (await call(here, "GET", last["id"])).json() == last
    assert (await call(here, "DELETE", first["id"])).status_code == 200
    await post(here, previous_response_id=last["id"], input="so?")
    assert prompt_of(here).count("Hello, world") == 2
    unknown = await post(here, previous_response_id=first["id"])
    assert unknown.status_code == 400
    assert unknown.json()["error"]["code"] == "previous_response_not_found"


async def test_nobody_sees_anothers_responses(here: Site) -> None:
    made = (await post(here, key="a")).json()
    assert (await call(here, "GET", made["id"], key="b")).status_code == 404
    assert (await call(here, "DELETE", made["id"], key="b")).status_code == 404
    assert (await post(here, key="b", previous_response_id=made["id"])).status_code == 400
    reference = [{"type": "item_reference", "id": made["output"][0]["id"]}]
    assert (await post(here, key="b", input=reference)).status_code == 404
    assert (await post(here, key="a", input=reference)).status_code == 200
    assert (await call(here, "GET", made["id"], key="a")).status_code == 200


async def test_the_store_is_bounded() -> None:
    with site(config=ServerConfig(port=0, limits=Limits(stored_responses=2))) as here:
        ids = [(await post(here)).json()["id"] for _ in range(3)]
        assert [(await call(here, "GET", id)).status_code for id in ids] == [404, 200, 200]


async def test_input_items_are_listed_in_pages(here: Site) -> None:
    first = (await post(here, input="one")).json()
    second = (await post(here, input="two", previous_response_id=first["id"])).json()
    everything = (await call(here, "GET", f"{second['id']}/input_items?order=asc")).json()
    check_items(everything)
    texts = [item["content"][0]["text"] for item in everything["data"]]
    assert texts == ["one", "Hello, world", "two"]
    page = (await call(here, "GET", f"{second['id']}/input_items?limit=2")).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["two", "Hello, world"]
    assert page["has_more"] is True
    rest = (await call(here, "GET", f"{second['id']}/input_items?after={page['last_id']}")).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["one"]
    assert rest["has_more"] is False


@pytest.mark.parametrize(
    ("query", "field"), [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")]
)
async def test_a_wrong_page_is_refused(here: Site, query: str, field: str) -> None:
    made = (await post(here)).json()
    answer = await call(here, "GET", f"{made['id']}/input_items?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


async def test_what_needs_the_background_is_refused(here: Site) -> None:
    made = (await post(here)).json()
    assert (await call(here, "POST", f"{made['id']}/cancel")).status_code == 400
    assert (await call(here, "GET", f"{made['id']}?stream=true")).status_code == 400
    assert (await post(here, background=True)).json()["error"]["param"] == "background"


async def test_a_prompt_that_does_not_fit_is_refused(here: Site) -> None:
    answer = await post(here, input="x" * 5000, truncation="auto")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "input", "context_length_exceeded")


async def test_an_error_before_the_first_event_has_its_own_status(here: Site) -> None:
    here.engine.script.error = EngineFailure("out of luck")
    assert (await post(here, stream=True)).status_code == 503
