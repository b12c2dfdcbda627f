"""``anchorline replay --url``: what goes with it, what it prints, and when it fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from starlette.responses import JSONResponse, PlainTextResponse

from anchorline.bench.client import SHOWN_CHARACTERS
from anchorline.bench.trace import CHAT_PATH
from anchorline.cli.main import cli
from anchorline.cli.replay import CALLS, OPTIONS, REPORT, RUNNING
from anchorline.cli.replay_running import without_key
from tests.bench.live.bodies import chat
from tests.bench.live.strangers import Stranger, usage

KEY = "0secret9"


def write(path: Path, *paths: str) -> Path:
    lines = [{"t": at, "t_end": at, "path": each, "body": chat("a", "b")} for at, each in enumerate(paths)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "session.jsonl", CHAT_PATH, CHAT_PATH, "/v1/completions")


@pytest.fixture
def url() -> Iterator[str]:
    with Stranger([usage(100, 60, prefilled=40)]).listening() as url:
        yield url


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["replay", *map(str, arguments)])


def test_the_tables_show_tokens_and_times(trace: Path, url: str) -> None:
    result = replay(trace, "--url", url + "/v1/")
    assert result.exit_code == 0, result.stderr
    assert "session: 1 of 3 calls left out: /v1/completions is no chat call (call 2)" in result.stderr
    row = next(line for line in result.stdout.splitlines() if line.startswith("session"))
    assert row.split()[:6] == ["session", "2", "0", "200", "120", "80"]
    assert row.split()[-1] == "bytes"
    assert "TTFT warm" in result.stdout
    assert "restored + prefilled = prompt (checked in 2 of 2 answers)" in result.stdout


def test_the_json_says_how_calls_were_sent(trace: Path, url: str) -> None:
    (report,) = json.loads(replay(trace, "--url", url, "--salt", "word", "--json").stdout)
    assert (report["trace"], report["url"], report["prefilled_tokens"]) == ("session", url, 80)
    settings = report["settings"]
    assert (settings["salt"], settings["model"], settings["pace"]) == ("word", "strange-7b", None)


def test_the_page_says_how_it_was_made_but_not_the_key(
    trace: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "report.html"
    arguments = [str(trace), "--url", url, "--html", str(page), "--api-key", "secret"]
    monkeypatch.setattr("sys.argv", ["/usr/bin/anchorline", "replay", *arguments])
    assert replay(*arguments).exit_code == 0
    assert f"anchorline replay {trace} --url {url} --html {page} --api-key KEY" in page.read_text()
    assert "secret" not in page.read_text()


def test_a_key_that_the_server_repeats_is_hidden(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    long = "x" * (SHOWN_CHARACTERS - 3) + KEY
    answers = [
        JSONResponse({"error": {"message": f"{KEY} is no key"}}, status_code=401),
        PlainTextResponse(f"data: {KEY}\n\n"),
        PlainTextResponse(f'data: {{"error": {{"message": "not with {KEY}"}}}}\n\n'),
        PlainTextResponse(long, status_code=500),
        PlainTextResponse("", headers={"content-encoding": "gzip", "content-length": "0"}),
        {**usage(100, 60), "timings": {"plan": f"a plan of {KEY}", "of": [KEY]}},
    ]
    for answer in answers:
        with Stranger([answer]).listening() as url:
            for form in ("--json", "--no-salt"):
                result = replay(trace, "--url", url, "--html", page, "--api-key", KEY, form)
                assert isinstance(result.exception, SystemExit | None)
                for shown in (result.stdout, result.stderr, page.read_text()):
                    assert KEY[:3] not in shown


def test_a_refusal_that_no_file_can_hold_is_written_all_the_same(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    halved = PlainTextResponse('data: {"error": {"message": "half \\ud800 of a letter"}}\n\n')
    with Stranger([halved]).listening() as url:
        result = replay(trace, "--url", url, "--html", page)
    assert result.exit_code == 1
    assert "2 of 2 calls refused" in result.stderr
    assert "half ? of a letter" in page.read_text()


def test_an_answer_that_is_not_encoded_as_it_says_is_a_refusal(trace: Path) -> None:
    untrue = PlainTextResponse("plain", headers={"content-encoding": "gzip"})
    with Stranger([untrue, usage(100, 0)]).listening() as url:
        result = replay(trace, "--url", url, "--warm-up", "0")
    assert result.exit_code == 1
    assert "1 of 2 calls refused (session 0: the answer is not encoded as its headers say" in result.stderr
    assert "session      2        1     100" in result.stdout


def test_a_trace_sends_the_key_to_no_other_host(tmp_path: Path, url: str) -> None:
    other = Stranger([usage(100, 0)])
    with other.listening() as elsewhere:
        path = write(tmp_path / "session.jsonl", CHAT_PATH, elsewhere + CHAT_PATH)
        result = replay(path, "--url", url, "--api-key", KEY)
    assert result.exit_code == 2
    assert "session.jsonl, line 2, is no trace entry" in result.stderr
    assert other.seen == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "secret", "--json"], ["--api-key", "KEY", "--json"]),
        (["--api-key=secret", "t"], ["--api-key=KEY", "t"]),
        (["t"], ["t"]),
    ],
)
def test_a_key_is_not_shown(given: list[str], shown: list[str]) -> None:
    assert without_key(given) == shown


@pytest.mark.parametrize(
    ("ending", "arguments", "said"),
    [
        (None, (), "2 of 2 calls refused (session 0: HTTP 400: too long for me"),
        (usage(100, 60, prefilled=41), (), "restored + prefilled is not the prompt in 2: session 0, session 1"),
        (usage(100, 0), ("--max-ratio", 1.5), "times the oracle (--max-ratio 1.5)"),
        (usage(100), ("--max-ratio", 1.5), "does not report what --max-ratio is about"),
    ],
    ids=["refused", "wrong sums", "too much", "not told"],
)
def test_what_is_wrong_fails_it(
    trace: Path, ending: dict[str, object] | None, arguments: tuple[object, ...], said: str
) -> None:
    with Stranger([ending]).listening() as url:
        result = replay(trace, "--url", url, *arguments)
    assert result.exit_code == 1
    assert said in result.stderr


def test_each_call_makes_a_connection_of_its_own(tmp_path: Path) -> None:
    """Some servers close one behind a streamed reply without a word."""
    path = write(tmp_path / "session.jsonl", "/v1/responses", "/v1/responses")
    ending = {"type": "response.completed", "response": {"status": "completed", "usage": {"input_tokens": 9}}}
    stranger = Stranger([ending])
    with stranger.listening() as url:
        assert replay(path, "--url", url).exit_code == 0
    assert len(set(stranger.ports)) == len(stranger.ports) == 3


def test_without_a_ratio_to_keep_none_is_kept(trace: Path) -> None:
    with Stranger([usage(100, 0)]).listening() as url:
        assert replay(trace, "--url", url).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model", "test:llama"), "--model is for servers that replay starts"),
        (("--peer", "llama-server"), "--peer is for servers"),
        (("--compare-no-cache",), "--compare-no-cache is for servers"),
        (("--salt", "a", "--no-salt"), "--no-salt"),
        (("--salt", " "), "--salt must not be empty"),
        (("--mix", "--pace", "2"), "--mix"),
        (("--mix", "--concurrency", "2"), "--mix"),
        (("--pace", "fast"), "'recorded' nor 'none' nor a number"),
        (("--pace", "0"), "must be more than 0"),
        (("--pace", "nan"), "must be more than 0"),
        (("--concurrency", "257"), "1<=x<=256"),
        (("--url", "ftp://host"), "--url 'ftp://host' is not of the form"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_named(trace: Path, arguments: tuple[str, ...], named: str) -> None:
    result = replay(trace, "--url", "http://127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert named in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--concurrency", "2"), ("--html", "page.html"), ("--no-salt",), ("--model-name", "m")],
    ids=" ".join,
)
def test_what_is_about_a_running_server_needs_one(trace: Path, arguments: tuple[str, ...]) -> None:
    result = replay(trace, *arguments)
    assert result.exit_code == 2
    assert f"{arguments[0]} needs --url" in result.stderr


def test_a_pace_needs_a_running_server_or_traces_at_once(trace: Path) -> None:
    result = replay(trace, "--pace", "2")
    assert result.exit_code == 2
    assert "--pace needs --at-once, or --url" in result.stderr


def test_a_trace_without_words_needs_a_running_server(tmp_path: Path, url: str) -> None:
    path = tmp_path / "blocks.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n')
    assert "needs --url" in replay(path).stderr
    assert replay(path, "--url", url, "--concurrency", "2", "--pace", "recorded").exit_code == 0
    assert "--block-tokens" in replay(path, "--url", url, "--block-tokens", "4").stderr


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
    sections = (CALLS, RUNNING, REPORT)
    flags = [option.opts[0] for option in OPTIONS if option.section in sections]
    assert [flag for flag in flags if f"`{flag}" not in page] == []


def test_a_trace_that_holds_no_call_is_named(tmp_path: Path, url: str) -> None:
    result = replay(write(tmp_path / "none.jsonl", "/v1/completions"), "--url", url)
    assert result.exit_code == 2
    assert "no call can be sent again of: none" in result.stderr


def test_one_call_that_goes_on_from_another_spoils_no_replay(tmp_path: Path, url: str) -> None:
    path = write(tmp_path / "session.jsonl", CHAT_PATH, CHAT_PATH)
    known = {"t": 2, "t_end": 3, "path": "/v1/responses", "body": {"input": "x", "previous_response_id": "resp_1"}}
    path.write_text(path.read_text() + json.dumps(known) + "\n")
    result = replay(path, "--url", url)
    assert result.exit_code == 0, result.stderr
    assert "session: 1 of 3 calls left out: previous_response_id names what only the server holds" in result.stderr


def test_no_server_is_said(trace: Path) -> None:
    result = replay(trace, "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "no answer from http://127.0.0.1:1" in result.stderr
