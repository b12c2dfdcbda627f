"""The endpoints that do not generate, and the errors of the edge."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import llama_cpp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from anchorline.api.models import FILE_TYPES
from anchorline.config import ServerConfig
from anchorline.engine.request import MissReason
from anchorline.limits import Limits
from tests.server.asgi import AsgiCall
from tests.server.standin import ByteTokenizer
from tests.server.support import INFO, Site, site

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "user", "content": "hi"}]


async def get(here: Site, path: str) -> Any:
    async with here.client() as client:
        response = await client.get(path)
    assert response.status_code == 200
    return response.json()


async def post(here: Site, path: str, body: object) -> Any:
    async with here.client() as client:
        return (await client.post(path, json=body)).json()


async def test_health_follows_the_engine(here: Site) -> None:
    assert await get(here, "/health") == {"status": "ok"}
    here.engine.close()
    async with here.client() as client:
        response = await client.get("/health")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_failure"


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/api/tags"])
async def test_models_say_how_long_the_context_is(here: Site, path: str) -> None:
    listed = await get(here, path)
    (model,) = listed["data"]
    assert (listed["object"], model["object"], model["id"]) == ("list", "model", "bytes")
    assert model["context_length"] == model["max_model_len"] == model["meta"]["n_ctx"] == 4096
    assert model["meta"]["n_ctx_train"] == 8192
    assert listed["models"][0]["name"] == "bytes"


@pytest.mark.parametrize(
    ("metadata", "name"),
    [({"general.file_type": "7"}, "Q8_0"), ({"general.file_type": "15"}, "Q4_K_M"), ({}, "unknown")],
)
async def test_ollamas_clients_get_the_quantisation_by_name(metadata: dict[str, str], name: str) -> None:
    with site(info=dataclasses.replace(INFO, metadata=metadata)) as here:
        (model,) = (await get(here, "/api/tags"))["models"]
        assert model["details"]["quantization_level"] == name
        assert (await post(here, "/api/show", {"model": "bytes"}))["details"]["quantization_level"] == name


def test_file_types_are_those_of_llama_cpp() -> None:
    prefix, whole = "LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_F32"
    named = {getattr(llama_cpp, name): name.removeprefix(prefix) for name in dir(llama_cpp) if name.startswith(prefix)}
    assert named | {getattr(llama_cpp, whole): "F32"} == FILE_TYPES


async def test_one_model(here: Site) -> None:
    assert (await get(here, "/v1/models/bytes"))["id"] == "bytes"
    async with here.client() as client:
        response = await client.get("/v1/models/a/b")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/models/unknown", 404, "not_found_error"),
        ("DELETE", "/v1/models/bytes", 405, "invalid_request_error"),
        ("POST", "/v1/models", 405, "invalid_request_error"),
        ("POST", "/models", 405, "invalid_request_error"),
        ("POST", "/api/tags", 405, "invalid_request_error"),
    ],
)
async def test_errors_about_models_are_anthropics_for_clients_that_name_its_version(
    here: Site, method: str, path: str, status: int, kind: str
) -> None:
    async with here.client() as client:
        openai = await client.request(method, path)
        anthropic = await client.request(method, path, headers={"anthropic-version": "2023-06-01"})
    assert openai.status_code == anthropic.status_code == status
    assert "type" not in openai.json()
    told = anthropic.json()
    assert (told["type"], told["error"]["type"]) == ("error", kind)
    assert told["error"]["message"] == openai.json()["error"]["message"]
    assert told["request_id"] == anthropic.headers["request-id"]
    assert "request-id" not in openai.headers


async def test_other_paths_stay_with_their_own_protocol(here: Site) -> None:
    async with here.client() as client:
        for path in ("/v1/responses/unknown", "/v1/modelsX", "/nowhere"):
            response = await client.get(path, headers={"anthropic-version": "2023-06-01"})
            assert response.status_code == 404
            assert response.json()["error"]["code"], path


async def test_an_alias_names_the_model() -> None:
    with site(config=ServerConfig(port=0, model_alias="mine")) as here:
        assert (await get(here, "/v1/models"))["data"][0]["id"] == "mine"
        reply = await post(here, "/v1/chat/completions", {"messages": MESSAGES, "model": "other"})
        assert reply["model"] == "mine"


async def test_props_in_llama_servers_shape(here: Site) -> None:
    props = await get(here, "/props")
    assert props == await get(here, "/v1/props")
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["total_slots"] == 4
    assert props["chat_template"] == "{{ messages }}"
    assert (props["bos_token"], props["eos_token"]) == ("", "<|im_end|>")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"content": "aé"}, [97, 195, 169]),
        ({"content": ""}, []),
        ({"content": "a<|im_end|>"}, [97, 257]),
        ({"content": "<|im_end|>", "parse_special": False}, list(b"<|im_end|>")),
        ({"content": ["a", 257, "b"]}, [97, 257, 98]),
        ({"content": "a", "add_special": True}, [258, 97]),
        ({"content": "<|bos|>a"}, [258, 97]),
        ({"content": "<|bos|>a", "add_special": True}, [258, 258, 97]),
        ({"content": "a", "with_pieces": True}, [{"id": 97, "piece": "a"}]),
        ({"content": [195], "with_pieces": True}, [{"id": 195, "piece": [195]}]),
    ],
)
async def test_tokenize(body: dict[str, Any], expected: list[Any]) -> None:
    with site(tokenizer=ByteTokenizer(adds_bos=True)) as here:
        assert await post(here, "/tokenize", body) == {"tokens": expected}


async def test_detokenize_spells_control_tokens_out(here: Site) -> None:
    assert await post(here, "/detokenize", {"tokens": [97, 257, 195]}) == {"content": "a<|im_end|>�"}


async def test_apply_template(here: Site) -> None:
    assert await post(here, "/apply-template", {"messages": MESSAGES}) == {"prompt": "user: hi\nassistant:"}
    both = await post(here, "/apply-template", {"messages": MESSAGES, "return_tokens": True})
    assert bytes(both["tokens"]) == b"user: hi\nassistant:"
    assert await post(here, "/apply-template", {"messages": MESSAGES, "add_generation_prompt": False}) == {
        "prompt": "user: hi"
    }


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 3}, "content"),
        ("/tokenize", {"content": ["a", 1.5]}, "content[1]"),
        ("/tokenize", {"content": [300]}, "content[0]"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [97, "a"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [97, 300]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": [{"role": "wizard"}]}, "messages[0].role"),
    ],
)
async def test_bad_bodies_name_the_field(here: Site, path: str, body: object, field: str) -> None:
    async with here.client() as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/v1",
        "/version",
        "/api/version",
        "/api/ps",
        "/slots",
        "/api/v1/models",
        "/v1/models/",
        "/health/",
        "//evil.example",
    ],
)
async def test_unknown_paths_are_404(here: Site, path: str) -> None:
    async with here.client() as client:
        response = await client.get("http://127.0.0.1" + path)
    assert response.status_code == 404
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_doubled_version_is_explained(here: Site) -> None:
    async with here.client() as client:
        response = await client.post("/v1/v1/messages", json={})
    assert response.status_code == 404
    assert "base URL must not end in /v1" in response.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/chat/completions"), ("DELETE", "/v1/models")])
async def test_wrong_methods_are_405(here: Site, method: str, path: str) -> None:
    async with here.client() as client:
        response = await client.request(method, path)
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert response.headers["allow"]


async def test_probes_of_other_servers_are_never_500(here: Site) -> None:
    async with here.client() as client:
        shown = await client.post("/api/show", json={"model": "bytes"})
        assert shown.json()["model_info"]["llama.context_length"] == 4096
        for method, path in (("GET", "/api/version"), ("GET", "/v1/slots"), ("POST", "/api/chat"), ("GET", "/")):
            response = await client.request(method, path)
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/x-www-form-urlencoded"])
async def test_the_content_type_does_not_matter(here: Site, content_type: str) -> None:
    async with here.client() as client:
        raw = json.dumps({"messages": MESSAGES}).encode()
        response = await client.post("/v1/chat/completions", content=raw, headers={"content-type": content_type})
    assert response.status_code == 200


async def test_malformed_json_is_400_with_its_position(here: Site) -> None:
    async with here.client() as client:
        response = await client.post("/v1/chat/completions", content=b'{"messages": [}')
    assert response.status_code == 400
    assert "(byte 14)" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/apply-template", "/api/show"]
)
async def test_a_body_over_the_limit_is_413(path: str) -> None:
    config = ServerConfig(port=0, limits=Limits(body_bytes=100))
    with site(config=config) as here:
        async with here.client() as client:
            response = await client.post(path, content=b"x" * 101)
            assert (await client.post(path, content=b" " * 100)).status_code in (200, 400)
    assert response.status_code == 413
    assert "--max-body-bytes" in response.json()["error"]["message"]


async def test_reading_stops_at_the_limit() -> None:
    config = ServerConfig(port=0, limits=Limits(body_bytes=100))
    with site(config=config) as here:
        endless = AsgiCall("POST", "/v1/chat/completions", [b"x" * 60] * 1000)
        async with endless.running(here.app):
            pass
        assert endless.status == 413
        assert endless.parts_read == 2


async def test_a_body_declared_too_large_is_not_read() -> None:
    with site(config=ServerConfig(port=0, limits=Limits(body_bytes=100))) as here:
        large = AsgiCall("POST", "/v1/chat/completions", b"x" * 101, content_length="101")
        async with large.running(here.app):
            pass
        assert (large.status, large.parts_read) == (413, 0)


async def test_a_bug_is_a_500_with_a_logged_traceback(here: Site, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise ZeroDivisionError("secret detail")

    here.engine.stats = broken  # type: ignore[method-assign, assignment]
    here.state.metrics.registry._collector_to_names.clear()  # the collector holds the old method
    here.state.metrics.watch_engine(broken)  # type: ignore[arg-type]
    async with here.client() as client:
        response = await client.get("/metrics")
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "internal error"
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_metrics_count_requests_calls_and_the_engine(here: Site) -> None:
    here.engine.script.miss = MissReason.EVICTED
    await post(here, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 5})
    await post(here, "/v1/chat/completions", {})
    await post(here, "/nowhere/at/all", {})
    async with here.client() as client:
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return samples[f"anchorline_{name}", tuple(sorted(labels.items()))]

    assert value("requests_total", endpoint="/v1/chat/completions", status="200") == 1
    assert value("requests_total", endpoint="/v1/chat/completions", status="400") == 1
    assert value("requests_total", endpoint="other", status="404") == 1
    assert value("tokens_total", source="resident") == 4
    assert value("tokens_total", source="host") == 8
    assert value("tokens_total", source="prefilled") == 7
    assert value("tokens_total", source="generated") == 5
    assert value("plans_total", kind="restore") == 1
    assert value("hits_total", tier="host") == value("hits_total", tier="resident") == 1
    assert value("misses_total", reason="evicted") == 1
    assert value("missed_tokens_total", reason="evicted") == 8
    for name in ("queue", "sharing", "restore", "prefill", "decode", "ttft"):
        assert value(f"{name}_seconds_count") == 1
    assert value("ttft_seconds_sum") == pytest.approx(0.006)
    assert value("unsaved_cuts_total", reason="budget") == 16
    assert value("unmerged_chains_total", reason="no_room") == 22
    assert value("merged_segments_total") == 20
    assert value("merged_bytes_total") == 21
    assert value("evictions_total") == 14
    assert value("decoded_tokens_total") == 40
    assert value("preemptions_total") == 6
    assert value("dropped_idle_total", reason="crowding") == 41
    assert value("shortened_idle_total") == 42
    assert value("awaited_returns_total") == 43
    assert value("waiting_requests") == 2
    assert value("held_requests") == 1
    assert value("host_used_bytes") == 7
    assert value("up") == 1
