"""The serve command in a process of its own: ready, served, stopped, and refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from anchorline.bench import agent
from anchorline.bench.client import CallFailed, Client
from anchorline.bench.process import ServerFailed, ServerProcess, start_anchorline

SMALL = ("test:llama", "--threads", "1", "--ctx", "2048", "--cache-ram", "64m")


def refuse(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a serve command that must not come up."""
    command = [sys.executable, "-m", "anchorline", "serve", "--port", "0", *arguments]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    return result.returncode, result.stderr


def start(*arguments: str) -> ServerProcess:
    return start_anchorline([*SMALL, *arguments])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_says_where_it_is_and_ends_in_order(number: signal.Signals) -> None:
    with start() as server:
        url = server.wait_until_listening()
        assert not url.endswith(":0")
        with Client(url) as client:
            assert client.get("/health") == {"status": "ok"}
            assert client.get("/v1/models")["data"][0]["id"] == "test:llama"
        os.kill(server.pid, number)
        assert server.wait() == 0
    assert "Traceback" not in "\n".join(server.lines)


def test_settings_reach_the_engine() -> None:
    with start(
        "--parallel", "2", "--alias", "mine", "--api-key", "k", "--chat-template", "hermes", "--tool-format", "llama"
    ) as server:
        with Client(server.wait_until_listening(), api_key="k") as client:
            props = client.get("/props")
            body = agent.chat_body([agent.user("hello")], max_tokens=4)
            answer = client.chat(body)
        assert props["total_slots"] == 2
        assert props["default_generation_settings"]["n_ctx"] == 2048
        assert answer.prompt_tokens == answer.prefilled_tokens
        banner = next(line for line in server.lines if "cache_RAM" in line)
    assert 'cache_RAM="64MiB"' in banner
    assert 'template="hermes (built in: --chat-template)"' in banner
    assert 'tool_format="llama"' in banner
    assert not any("turn marks" in line for line in server.lines)


def test_turn_marks_that_the_model_reads_as_text_are_told_once() -> None:
    with start("--chat-template", "gemma") as server:
        server.wait_until_listening()
    (told,) = [line for line in server.lines if "turn marks" in line]
    assert "WARNING" in told
    assert "template 'gemma'" in told
    assert "--chat-template" in told


def test_a_warmed_head_is_kept_before_its_first_call(tmp_path: Path) -> None:
    body = agent.chat_body([agent.user("hello")], max_tokens=2)
    path = tmp_path / "warm.json"
    path.write_text(json.dumps(body))
    with start("--warm", str(path), "--warm", str(path)) as server, Client(server.wait_until_listening()) as client:
        while "warming" in client.get("/health"):
            pass
        (anchor,) = client.get("/cache/anchors")["data"]
        assert (anchor["kind"], anchor["name"]) == ("explicit", "warm.json")
        assert client.chat(body).cached_tokens == anchor["tokens"] > 500
    assert any(f"--warm: {path} is kept as {anchor['id']}" in line for line in server.lines)
    assert any(line.endswith("loading test:llama") for line in server.lines)


def test_no_cache_means_none() -> None:
    with start("--no-cache") as server, Client(server.wait_until_listening()) as client:
        body = agent.chat_body([agent.user("hello")], max_tokens=2)
        assert [client.chat(body).cached_tokens for _ in range(2)] == [0, 0]


def test_json_log_lines_are_objects() -> None:
    with start("--log-format", "json") as server:
        server.wait_until_listening()
        lines = list(server.lines)
    entries = [json.loads(line) for line in lines if not line.startswith("listening on")]
    assert entries
    assert all(entry.keys() >= {"time", "level", "logger", "message"} for entry in entries)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "there is no model file"), (b"", "is empty"), (b"PK\x03\x04 not a model", "is not a GGUF file")],
)
def test_a_model_that_cannot_be_loaded(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    code, said = refuse(str(path))
    assert code == 2
    assert said.splitlines()[-1].startswith("Error: ")
    assert str(path) in said
    assert reason in said
    assert "Traceback" not in said


def test_a_truncated_model_is_refused_in_one_line(tiny_smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_smollm2_path.read_bytes()[:3_000_000])
    code, said = refuse(str(path), "--log-level", "error")
    assert code == 2
    assert str(path) in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--host", "0.0.0.0"), "--api-key"),
        (("--chat-template", "no-such-template"), "--chat-template"),
        (("--script", "no-such-script"), "--script: no-such-script cannot be read"),
        (("--warm", "no-such-file"), "--warm: no-such-file cannot be read"),
        (("--warm", "no-such-file", "--no-cache"), "--warm needs the cache that --no-cache turns off"),
        (("--ctx", "16777216", "--cache-type-k", "f32", "--cache-type-v", "f32"), "--ctx"),
        (("--tool-format", "no-such-format"), "--tool-format"),
        (("--model", "test:mamba2"), "--model"),
        (("--flash-attn", "off", "--cache-type-v", "q8_0"), "--flash-attn"),
    ],
)
def test_an_unusable_setting_is_named(arguments: Sequence[str], named: str) -> None:
    code, said = refuse("test:llama", *arguments)
    assert code == 2
    assert named in said
    assert "Traceback" not in said


def test_only_test_models_follow_a_script() -> None:
    code, said = refuse("smollm2", "--script", "replies.jsonl")
    assert code == 2
    assert "--script needs a test:ARCH model, not smollm2" in said


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS_FOR_SOME = f"{{% if messages[-1].content == 'loop' %}}{ENDLESS}{{% endif %}}{{{{ messages }}}}"


def test_a_template_without_an_end_is_refused_at_start_up(tmp_path: Path) -> None:
    path = tmp_path / "endless.jinja"
    path.write_text(ENDLESS)
    code, said = refuse("test:llama", "--chat-template", str(path), "--max-template-steps", "10000")
    assert code == 2
    assert "--chat-template: endless.jinja is not usable" in said
    assert "--max-template-steps" in said


def test_a_template_that_finds_no_end_for_some_messages_serves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "endless.jinja"
    path.write_text(ENDLESS_FOR_SOME)
    with start("--chat-template", str(path), "--max-template-steps", "10000", "--prepare-threads", "1") as server:
        with Client(server.wait_until_listening()) as client:
            for _ in range(3):
                with pytest.raises(CallFailed, match="max-template-steps"):
                    client.chat(agent.chat_body([agent.user("loop")], max_tokens=2, tools=False))
            # also where only a part of the conversation, rendered to find its cuts, finds none
            body = agent.chat_body([agent.user("loop"), agent.user("go on")], max_tokens=2, tools=False)
            assert client.chat(body).prompt_tokens > 0
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait() == 0


def test_a_signal_ends_a_server_whose_template_still_runs(tmp_path: Path) -> None:
    path = tmp_path / "endless.jinja"
    path.write_text(ENDLESS_FOR_SOME)
    limits = ("--max-template-steps", str(1 << 40), "--max-template-seconds", "3600", "--shutdown-timeout", "0")
    with start("--chat-template", str(path), *limits) as server:
        url = httpx.URL(server.wait_until_listening())
        body = json.dumps({"messages": [{"role": "user", "content": "loop"}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        with socket.create_connection((url.host, url.port or 0)) as connection:
            connection.sendall(head + body)
            assert httpx.get(url.join("/health")).status_code == 200
            os.kill(server.pid, signal.SIGTERM)
            assert connection.recv(100).startswith(b"HTTP/1.1 503")
        assert server.wait() == 0


def test_an_unknown_test_model_names_the_known() -> None:
    code, said = refuse("test:nonesuch")
    assert code == 2
    assert "llama" in said


@pytest.mark.parametrize(
    ("models", "named"),
    [
        (("/no/such/model.gguf", "test:llama"), "there is no model file /no/such/model.gguf"),
        (("test:llama", "test:nonesuch"), "there is no test model 'nonesuch'"),
        (("test:llama", __file__), "is not a GGUF file"),
    ],
)
def test_of_several_models_one_that_plainly_cannot_be_loaded_is_refused(models: Sequence[str], named: str) -> None:
    code, said = refuse(*models)
    assert code == 2
    assert named in said.splitlines()[-1]


def test_a_busy_port_is_named_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refuse("/no/such/model.gguf", "--port", str(port))
    assert code == 2
    assert f"--port {port}" in said


def test_a_child_that_ends_early_is_reported_with_its_words() -> None:
    script = "import sys; print('what went wrong', file=sys.stderr); sys.exit(3)"
    with (
        ServerProcess([sys.executable, "-c", script]) as server,
        pytest.raises(ServerFailed, match="code 3") as failure,
    ):
        server.wait_until_listening()
    assert "what went wrong" in str(failure.value)


def test_a_child_that_ignores_sigterm_is_killed() -> None:
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('listening on http://nowhere', file=sys.stderr, flush=True)\n"
        "signal.pause()"
    )
    server = ServerProcess([sys.executable, "-c", script], stop_seconds=0.1)
    assert server.wait_until_listening() == "http://nowhere"
    assert server.stop() == -signal.SIGKILL
