"""Signals while a server loads, computes and frees its model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import httpx
import pytest

from anchorline.bench.process import ServerProcess, start_anchorline

LONG_PROMPT = [number * 7 % 500 for number in range(15000)]

# A mutex that is locked twice waits in C for ever, as a long load does, and no signal interrupts it.
LOADING = """
import ctypes, sys
from anchorline.cli import main, serve

def load_model(config):
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    print("loading", flush=True)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

serve.load_model = load_model
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
