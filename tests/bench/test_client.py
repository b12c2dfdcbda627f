"""The client: it calls one server, and says what went wrong with a call in words that can be shown."""

from __future__ import annotations

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from anchorline.bench.client import CallFailed, Client, server_url
from tests.bench.live.strangers import Stranger, usage

KEY = "0secret9"


@pytest.mark.parametrize("how", ["{}/v1/chat/completions", "{}/"])
def test_no_other_host_is_called(how: str) -> None:
    base, other = Stranger([usage(1)]), Stranger([usage(1)])
    with base.listening() as url, other.listening() as elsewhere, Client(url, api_key=KEY) as client:
        with pytest.raises(CallFailed, match=f"is not on {url}: nothing was sent"):
            client.post(how.format(elsewhere), {})
        with pytest.raises(CallFailed, match="nothing was sent"):
            list(client.events(how.format(elsewhere), {}))
    assert base.seen == other.seen == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (PlainTextResponse("[" * 200_000, status_code=500), r"HTTP 500: \[\["),
        (PlainTextResponse("[" * 200_000), "did not answer with JSON"),
        (PlainTextResponse('{"a": NaN}'), "did not answer with JSON"),
        (PlainTextResponse("{}", headers={"content-encoding": "gzip"}), "not encoded as its headers say"),
        (PlainTextResponse("a", status_code=500, headers={"content-type": "text/plain; charset=hex"}), "HTTP 500: a"),
        (JSONResponse({"error": {"message": f"not with {KEY}", "code": 7}}, status_code=401), "not with KEY"),
    ],
    ids=["deep error", "deep answer", "NaN", "no gzip", "no charset of text", "key"],
)
def test_an_answer_that_cannot_be_read_is_a_failed_call(answer: Response, said: str) -> None:
    with Stranger([answer]).listening() as url, Client(url, api_key=KEY) as client:
        with pytest.raises(CallFailed, match=said):
            client.post("/v1/responses", {})
        if answer.status_code != 200:
            with pytest.raises(CallFailed, match=said):
                list(client.events("/v1/responses", {}))


def test_ids_are_ids() -> None:
    """Anything else would become other ids, or end the program."""
    for tokens, cuts in (("xyz", [1]), ([2**40, -5], [1]), ([1.5, None], [1]), ([[1]], [1]), ([1], ["a"]), ([1], None)):
        client = Client("http://127.0.0.1:1")
        client.call = lambda *_, tokens=tokens, cuts=cuts: {"tokens": tokens, "cuts": cuts}  # type: ignore[method-assign]
        with (
            client,
            pytest.raises(CallFailed, match=r"the answer of http://127\.0\.0\.1:1/apply-template cannot be read"),
        ):
            client.prompt({})


def test_a_base_with_a_path_keeps_it() -> None:
    stranger = Stranger([JSONResponse({})])
    with stranger.listening() as url, Client(str(server_url(url + "/at/v1/", flag="--url"))) as client:
        client.post("/v1/responses?a=b", {})
    assert [path for path, *_ in stranger.seen] == ["/at/v1/responses"]
