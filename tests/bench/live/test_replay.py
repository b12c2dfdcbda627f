"""Replays against live servers: Anchorline, llama-server, and a stranger."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import StreamingResponse

from anchorline.bench.client import Client, Unreachable
from anchorline.bench.live.blocks import read_block_trace, written_out
from anchorline.bench.live.perfect import OracleKind, SentPrompt, costs_of, token_ids_of
from anchorline.bench.live.replay import Replaying, replay_live, replayable
from anchorline.bench.live.report import LiveReport
from anchorline.bench.live.schedule import AT_ONCE
from anchorline.bench.live.sender import Sender, first_model, new_salt, words_per_token
from anchorline.bench.live.shown import shown
from anchorline.bench.oracle import as_tokens
from anchorline.bench.peers import LlamaServer, PeerSettings, check_python
from anchorline.bench.process import start_anchorline
from anchorline.bench.trace import CHAT_PATH, Trace, chat_only, read_trace
from anchorline.config import ModelConfig
from anchorline.errors import ConfigError
from anchorline.llama import testmodel
from anchorline.llama.model import load_model
from tests.bench.live.bodies import EVERY_PROTOCOL, MESSAGES_PATH, RESPONSES_PATH, Body, chat, messages, trace_of
from tests.bench.live.strangers import Stranger, usage

RECORDED = Path(__file__).resolve().parents[4] / "shared" / "traces"
PEER_PYTHON = os.environ.get("ANCHORLINE_PEER_PYTHON", sys.executable)
"""The Python that has xllamacpp."""
SPARE_TOKENS = 32
"""What Anchorline may prefill again where that is quicker than a restore, as it is for a model this small."""
HOW = Replaying(
    pace=AT_ONCE,
    concurrency=1,
    overlapping=False,
    warm_up=1,
    salt=None,
    model=None,
    max_tokens=8,
    at_cuts=False,
)


def session(path: str, make: Callable[..., Body]) -> Trace:
    """Two conversations on one head, taking turns; the last call repeats an earlier one."""
    return trace_of(
        path,
        make("list the files"),
        make("run the tests"),
        make("list the files", "now read one"),
        make("run the tests", "which failed?"),
        make("list the files", "now read one"),
    )


def replayed(url: str, *traces: Trace, salted: bool = True, how: Replaying = HOW) -> LiveReport:
    how = dataclasses.replace(how, salt=new_salt() if salted else None)
    with Client(url, reuses_connections=False) as client:
        return replay_live(traces, client, token_ids_of(client), name="all", how=how)


@pytest.mark.parametrize(("path", "make"), EVERY_PROTOCOL, ids=["chat", "messages", "responses"])
def test_anchorline_prefills_what_the_oracle_says_in_every_protocol(
    url: str, path: str, make: Callable[..., Body]
) -> None:
    report = replayed(url, session(path, make))
    assert not report.refused
    assert report.prefilled_tokens is not None
    assert report.oracle_tokens < report.prompt_tokens / 2
    if path == CHAT_PATH:
        assert report.oracle is OracleKind.TOKEN_IDS
        assert report.oracle_tokens <= report.prefilled_tokens <= report.oracle_tokens + 5 * SPARE_TOKENS
    else:
        assert report.oracle is OracleKind.BYTES
        assert 0.75 < report.prefilled_tokens / report.oracle_tokens < 1.25
    assert report.checked == (0 if path == MESSAGES_PATH else 5)
    assert not report.wrong_sums
    assert [call.warm for call in report.calls] == [False, True, True, True, True]
    times = report.times()
    assert all(times.values())
    # A reply has 8 tokens and so at most 7 gaps.
    assert times["ITL"] is not None
    assert times["ITL"].count <= 5 * 7


def test_runs_do_not_feed_each_other_unless_they_are_asked_to(url: str) -> None:
    trace = session(CHAT_PATH, chat)
    first, second = replayed(url, trace), replayed(url, trace)
    assert (first.cached_tokens, first.ratio) == (second.cached_tokens, second.ratio)
    as_recorded = [replayed(url, trace, salted=False) for _ in range(2)]
    assert as_recorded[1].calls[0].warm
    assert not as_recorded[0].calls[0].warm
    assert as_recorded[1].ratio is not None
    assert as_recorded[1].ratio < 0.2


def test_traces_side_by_side_are_one_report(url: str) -> None:
    traces = [session(CHAT_PATH, chat), session(MESSAGES_PATH, messages)]
    report = replayed(url, *traces, how=dataclasses.replace(HOW, concurrency=2))
    assert [(call.trace, call.index) for call in report.calls] == [
        *(("completions", index) for index in range(5)),
        *(("messages", index) for index in range(5)),
    ]
    assert report.oracle is OracleKind.BYTES


def test_a_call_that_is_refused_is_in_the_report(url: str) -> None:
    report = replayed(url, trace_of(CHAT_PATH, {"messages": []}, chat("hello"), chat("x y " * 9000)))
    assert [call.measured is None for call in report.calls] == [True, False, True]
    assert "HTTP 400" in str(report.refused[0].error)
    assert report.prompt_tokens == report.answered[0].measured.counts.prompt_tokens  # type: ignore[union-attr]


def test_a_block_trace_is_as_long_as_it_says_and_shares_what_it_says(url: str, tmp_path: Path) -> None:
    path = tmp_path / "blocks.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [1, 2]}\n'
        '{"timestamp": 9, "input_length": 1400, "output_length": 4, "hash_ids": [1, 2, 3]}\n'
        '{"timestamp": 9, "input_length": 900, "output_length": 4, "hash_ids": [1, 4]}\n'
    )
    with Client(url) as client:
        sender = Sender(client=client, model=None, max_tokens=1, salt=new_salt(), api_key=None, wants_reply_ids=False)
        ratio = words_per_token(sender)
    trace = written_out(read_block_trace(path, block_tokens=512), block_tokens=512, words_per_token=ratio)
    report = replayed(url, trace)
    counts = [call.measured.counts for call in report.answered if call.measured]
    assert [count.prompt_tokens for count in counts] == pytest.approx([1000, 1400, 900], rel=0.1)
    assert [count.cached_tokens for count in counts[1:]] == pytest.approx([1000, 512], rel=0.1)
    assert [count.reply_tokens for count in counts] == [4, 4, 4]


@pytest.fixture(scope="module", params=["test:llama", "tiny_smollm2_path"])
def tokenising(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that is only asked what it would make of calls, so its context may be short."""
    is_fixture = request.param.endswith("_path")
    model = str(request.getfixturevalue(request.param)) if is_fixture else request.param
    with start_anchorline([model, "--threads", "1", "--ctx", "1024", "--cache-ram", "64m"]) as server:
        yield server.wait_until_listening()


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"no recorded traces at {RECORDED}")
@pytest.mark.parametrize("name", ["hermes-fanout", "opencode", "cline", "pi", "langgraph"])
def test_the_estimate_by_bytes_is_near_the_oracle_by_ids(tokenising: str, name: str) -> None:
    ids, estimates = [], []
    with Client(tokenising) as client:
        for place, request in enumerate(chat_only(read_trace(RECORDED / f"{name}.jsonl")).requests):
            tokens, cuts = client.prompt(request.body)
            symbols, _ = shown(request.body)
            prompt = SentPrompt(
                symbols=tokens,
                cuts=tuple(cuts),
                reply=as_tokens(()),
                prompt_tokens=tokens.size,
                sent_seconds=place,
                ended_seconds=place,
            )
            ids.append(prompt)
            estimates.append(dataclasses.replace(prompt, symbols=symbols))
    exact, estimate = (sum(costs_of(prompts, at_cuts=False)) for prompts in (ids, estimates))
    assert 0.85 < estimate / exact < 1.15


@pytest.fixture(scope="module")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """llama-server with a model of random weights."""
    try:
        check_python(PEER_PYTHON)
    except ConfigError as error:
        pytest.skip(f"ANCHORLINE_PEER_PYTHON names no Python with the peer: {error}")
    path = tmp_path_factory.mktemp("peer") / "test.gguf"
    model = load_model(ModelConfig(model="test:llama", test_context=4096))
    testmodel.save(model.handle, path)
    model.close()
    with LlamaServer(PeerSettings(model=path, context_tokens=4096, chat=True), python=PEER_PYTHON) as server:
        yield server.url


def test_llama_server_in_chats(llama_server: str) -> None:
    report = replayed(llama_server, session(CHAT_PATH, chat))
    assert (report.oracle, report.checked) == (OracleKind.TOKEN_IDS, 5)
    assert not report.refused
    assert not report.wrong_sums
    assert report.ratio is not None
    assert 1.0 <= report.ratio < 1.5
    assert report.calls[2].warm


def test_llama_server_in_messages(llama_server: str) -> None:
    """It keeps the billing header, another one in each turn, in front of the prompt; the oracle leaves that out."""
    report = replayed(llama_server, session(MESSAGES_PATH, messages))
    assert (report.oracle, report.checked) == (OracleKind.BYTES, 0)
    assert not report.refused
    assert report.ratio is not None
    assert report.ratio > 1.5
    assert not report.calls[2].warm


def test_a_stranger_is_asked_in_its_own_protocol_and_believed() -> None:
    stranger = Stranger([usage(100, 0), usage(100, 60)])
    with stranger.listening() as url, Client(url, api_key="secret") as client:
        assert first_model(client) == "strange-7b"
        assert token_ids_of(client) is None
        report = replay_live(
            [trace_of(MESSAGES_PATH, messages("a")), trace_of(CHAT_PATH, chat("b"), chat("b", "c"))],
            client,
            None,
            name="all",
            how=dataclasses.replace(HOW, warm_up=0, salt="word", model="strange-7b"),
            api_key="secret",
        )
    headers = {path: headers for path, _, headers in stranger.seen}
    assert headers[MESSAGES_PATH]["x-api-key"] == "secret"
    assert headers[MESSAGES_PATH]["anthropic-version"]
    assert headers[CHAT_PATH]["authorization"] == "Bearer secret"
    assert "x-api-key" not in headers[CHAT_PATH]
    for _, body, _ in stranger.seen:
        assert (body["model"], body["stream"], body["max_tokens"]) == ("strange-7b", True, 8)
        assert "return_tokens" not in body
        assert "[word] " in str(body)
    # Its answers are chat chunks, which say nothing in the Messages protocol.
    (failed,) = report.refused
    assert (failed.path, failed.error) == (MESSAGES_PATH, f"{report.url} reported no usage")


def test_a_strangers_counts_are_checked() -> None:
    with Stranger([usage(100, 60, prefilled=40), usage(100, 60, prefilled=41)]).listening() as url:
        report = replayed(url, trace_of(CHAT_PATH, chat("a"), chat("b")), how=dataclasses.replace(HOW, warm_up=0))
    assert report.checked == 2
    assert [call.index for call in report.wrong_sums] == [1]


def test_what_is_no_event_fails_its_call_alone() -> None:
    with Stranger([["no", "object"], usage(100, 0)]).listening() as url:
        report = replayed(url, trace_of(CHAT_PATH, chat("a"), chat("b")), how=dataclasses.replace(HOW, warm_up=0))
    assert [call.error for call in report.calls] == [
        f'{report.url} sent an event that is no object: ["no", "object"]',
        None,
    ]


def test_a_connection_that_breaks_fails_its_call_alone() -> None:
    def breaking() -> Iterator[str]:
        yield 'data: {"choices": [{"delta": {"content": "well"}}]}\n\n'
        raise ConnectionResetError("as a server that is killed")

    with Stranger([usage(100, 0), StreamingResponse(breaking()), usage(100, 60)]).listening() as url:
        report = replayed(
            url, trace_of(CHAT_PATH, chat("a"), chat("b"), chat("c")), how=dataclasses.replace(HOW, warm_up=0)
        )
    assert [call.index for call in report.refused] == [1]
    assert f"no answer from {url}" in str(report.refused[0].error)
    assert report.prompt_tokens == 200


def test_what_cannot_be_sent_fails_its_call_alone() -> None:
    stranger = Stranger([usage(100, 0)])
    with stranger.listening() as url:
        report = replayed(url, trace_of(CHAT_PATH, chat("a"), chat("\ud800")), how=dataclasses.replace(HOW, warm_up=0))
    assert ["cannot be sent" in str(call.error) for call in report.calls] == [False, True]
    assert len(stranger.seen) == 1


def test_warm_up_calls_are_the_shortest_under_other_salts_and_not_in_the_report() -> None:
    stranger = Stranger([usage(100, 0)])
    with stranger.listening() as url:
        report = replayed(
            url,
            trace_of(CHAT_PATH, chat("a long question"), chat("b"), chat("c?")),
            how=dataclasses.replace(HOW, warm_up=2),
        )
    sent = [
        (body["messages"][-1]["content"], body["messages"][0]["content"].split("]")[0]) for _, body, _ in stranger.seen
    ]
    assert [text for text, _ in sent] == ["b", "c?", "a long question", "b", "c?"]
    salts = [salt for _, salt in sent]
    assert len(set(salts[:3])) == 3
    assert len(set(salts[2:])) == 1
    assert len(report.calls) == 3


def test_no_server_is_no_replay() -> None:
    with pytest.raises(Unreachable):
        replayed("http://127.0.0.1:1", trace_of(CHAT_PATH, chat("hello")))


def test_calls_that_are_no_chats_are_left_out() -> None:
    mixed = [trace_of(path, {}).requests[0] for path in ("/v1/completions", RESPONSES_PATH, "/v1/embeddings")]
    kept, left_out = replayable(Trace(name="t", requests=tuple(mixed)))
    assert kept.requests == (mixed[1],)
    assert left_out == {0: "/v1/completions is no chat call", 2: "/v1/embeddings is no chat call"}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "msg_1"}]}, "input[1]"),
        ({"input": [{"id": "msg_1"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": "x"}], "previous_response_id": None}, None),
        ({"input": "x"}, None),
    ],
)
def test_a_response_that_goes_on_from_what_its_server_kept_is_left_out(body: dict[str, Any], named: str | None) -> None:
    """That server has other ids now, and other servers never had any of it."""
    recorded = trace_of(RESPONSES_PATH, body)
    kept, left_out = replayable(recorded)
    if named is None:
        assert (kept, left_out) == (recorded, {})
    else:
        assert kept.requests == ()
        assert left_out[0].startswith(f"{named} names what only the server holds")
