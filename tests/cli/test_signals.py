"""Signals while a server loads, computes and frees its model, and while a command stops its servers."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from anchorline.bench import ending_with_parent
from anchorline.bench import process as processes
from anchorline.bench.process import ServerFailed, ServerProcess, start_anchorline
from anchorline.cli.signals import ending_with_servers

LONG_PROMPT = [number * 7 % 500 for number in range(15000)]

# A mutex that is locked twice waits in C for ever, as a long load does, and no signal interrupts it.
LOADING = """
import ctypes, sys
from anchorline.cli import hosting, main

def load_model(config):
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    print("loading", flush=True)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

hosting.load_model = load_model
sys.argv = ["anchorline", "serve", "--port", "0"]
main()
"""


def start_computing() -> ServerProcess:
    """A server whose every decode call takes a while, and whose calls get no time after a signal."""
    return start_anchorline(
        [
            *("test:llama", "--threads", "1", "--ctx", "16384", "--test-context", "16384", "--cache-ram", "64m"),
            *("--batch-size", "5000", "--ubatch-size", "5000", "--shutdown-timeout", "0"),
        ]
    )


@pytest.mark.parametrize("interrupts", [1, 2])
def test_signals_free_nothing_under_the_engine(interrupts: int) -> None:
    """The memory is freed once the decode call is through, however often the server is told to stop."""
    with start_computing() as server:
        url = server.wait_until_listening()
        answers: list[httpx.Response] = []
        body = {"prompt": LONG_PROMPT, "max_tokens": 500, "ignore_eos": True}
        with httpx.Client(base_url=url, timeout=60) as client:
            caller = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json=body)))
            caller.start()
            while "anchorline_running_streams 1.0" not in client.get("/metrics").text:
                pass
            for _ in range(interrupts):
                os.kill(server.pid, signal.SIGINT)
            caller.join()
        while os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(server.pid, signal.SIGTERM)
        assert server.wait() == 0
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "shutting_down"
    assert "Traceback" not in "\n".join(server.lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_loads(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", LOADING], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "loading\n"
            process.send_signal(number)
            assert process.wait(timeout=30) == -number
        finally:
            process.kill()


LEAVING = """
import logging, threading
from anchorline.cli.logs import set_up_logging
from anchorline.cli.signals import leave_at_once
set_up_logging("info", "text")
threading.Thread(target=threading.Event().wait).start()
logging.getLogger("x").warning("last words")
leave_at_once()
"""


def test_leaving_at_once_waits_for_no_thread() -> None:
    result = subprocess.run([sys.executable, "-c", LEAVING], timeout=60, check=False, capture_output=True, text=True)
    assert result.returncode == 0
    assert "last words" in result.stderr


# Tells a named pipe when it is asked to end, and does not.
STUBBORN = """
import signal, sys

def asked(*_):
    with open(sys.argv[1], "w") as told:
        told.write("asked")

signal.signal(signal.SIGTERM, asked)
print("listening on http://nowhere", file=sys.stderr, flush=True)
while True:
    signal.pause()
"""

STOPPING = """
import sys, threading
from anchorline.bench.process import ServerProcess
from anchorline.cli.signals import ending_with_servers

command = [sys.executable, *sys.argv[1:]]
with ending_with_servers():
    with ServerProcess(command, stop_seconds=3600) as one, ServerProcess(command, stop_seconds=3600) as other:
        one.wait_until_listening()
        other.wait_until_listening()
        print(one.pid, other.pid, flush=True)
        threading.Event().wait()
"""


def killed(pid: int) -> bool:
    """Whether there was such a process still."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_servers_that_a_command_is_stopping(second: signal.Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "asked")
    command = [sys.executable, "-c", STOPPING, "-c", STUBBORN, str(tmp_path / "asked")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        try:
            process.send_signal(signal.SIGTERM)
            assert (tmp_path / "asked").read_text() == "asked"
            process.send_signal(second)
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            process.kill()
            left = [pid for pid in pids if killed(pid)]
    assert not left


def test_no_server_is_left_that_was_not_stopped_and_no_other_is_touched() -> None:
    command = ["sh", "-c", "echo listening on http://nowhere >&2; exec sleep 60"]
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    started: list[ServerProcess] = []

    @ending_with_servers()
    def interrupted() -> None:
        started.append(ServerProcess(command))
        started[-1].wait_until_listening()
        signal.raise_signal(signal.SIGINT)

    with ServerProcess(command) as earlier:
        with pytest.raises(SystemExit, match=str(128 + signal.SIGINT)):
            interrupted()
        assert started[-1].wait() == -signal.SIGKILL
        assert earlier.stop() == -signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


STARTING = """
import sys, threading
from anchorline.bench.process import ServerProcess

def start():
    print(ServerProcess([sys.executable, *sys.argv[1:]]).pid, flush=True)

starting = threading.Thread(target=start)
starting.start()
starting.join()
threading.Event().wait()
"""

LIVING = """
import signal, sys

with open(sys.argv[1], "w") as told:
    told.write("it runs")
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no kernel ends a process with its parent")
def test_servers_end_with_a_command_that_is_killed_and_not_with_the_thread_that_asked_for_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    command = [sys.executable, "-c", STARTING, "-c", LIVING, str(tmp_path / "told")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        try:
            assert (tmp_path / "told").read_text() == "it runs"
            process.kill()
            process.wait()
            ended, _, _ = select.select([server], [], [], 30)
            assert ended
        finally:
            process.kill()
            if not select.select([server], [], [], 0)[0]:
                signal.pidfd_send_signal(server, signal.SIGKILL)
            os.close(server)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no kernel ends a process with its parent")
def test_a_command_whose_parent_has_ended_already_is_not_run() -> None:
    command = [sys.executable, ending_with_parent.__file__, str(os.getppid()), "echo", "it runs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_server_that_is_not_there_is_named() -> None:
    with (
        ServerProcess(["/no/such/server"]) as server,
        pytest.raises(ServerFailed, match="/no/such/server cannot be run"),
    ):
        server.wait_until_listening()


def test_one_thread_starts_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the kernel it is their parent: they would end with it."""
    threads: list[threading.Thread] = []
    start = processes._start

    def start_noting_thread(command: list[str], environment: dict[str, str] | None) -> subprocess.Popen[str]:
        threads.append(threading.current_thread())
        return start(command, environment)

    monkeypatch.setattr(processes, "_start", start_noting_thread)
    for _ in range(2):
        with ServerProcess(["true"]):
            pass
    assert threads[0] is threads[1]


def test_a_signal_before_a_server_is_noted_is_raised_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []

    def start(command: list[str], environment: dict[str, str] | None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)  # nothing waits for it: it is what a hasty main thread would use
        noted.extend(command)

    monkeypatch.setattr(processes, "_start", start)
    with pytest.raises(SystemExit), ending_with_servers():
        ServerProcess(["a server"])
    assert noted == ["a server"]


def test_a_signal_while_a_server_is_started_leaves_none(tmp_path: Path) -> None:
    """The server sends it as its first deed, while this process is about to note that it runs."""
    command = ["sh", "-c", f"echo $$ > {tmp_path}/pid; kill -TERM $PPID; exec sleep 60"]
    with pytest.raises(SystemExit), ending_with_servers():
        ServerProcess(command).wait_until_listening()
    pid = int((tmp_path / "pid").read_text())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
