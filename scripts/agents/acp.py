"""A client of the Agent Client Protocol: JSON-RPC lines over an agent's stdin and stdout.

It keeps the agent's process alive between turns, as an editor does, so that what the agent does
aside (titles, memory) overlaps with the next turn.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

PROTOCOL_VERSION = 1
_METHOD_NOT_FOUND = -32601


class AcpError(Exception):
    """The agent answered with an error, or ended."""


def converse(
    command: Sequence[str], questions: Sequence[str], *, cwd: Path, environment: Mapping[str, str], seconds: float
) -> str:
    """Ask ``questions`` one after the other in one session; what the agent sent, line by line.

    Raises AcpError when the agent fails or is not done within ``seconds``.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    watchdog = threading.Timer(seconds, process.kill)
    watchdog.start()
    assert process.stdin is not None
    assert process.stdout is not None
    peer = _Peer(process.stdin, process.stdout)
    try:
        peer.request("initialize", {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": {}})
        session = peer.request("session/new", {"cwd": str(cwd), "mcpServers": []})["sessionId"]
        for question in questions:
            peer.request("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": question}]})
    finally:
        process.stdin.close()
        process.terminate()
        process.wait()
        watchdog.cancel()
    return "".join(peer.received)


class _Peer:
    """The agent's end of the pipes."""

    def __init__(self, sent: IO[str], received: IO[str]) -> None:
        self._out = sent
        self._in = received
        self._last_id = 0
        self.received: list[str] = []

    def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """The result of a call; what the agent asks meanwhile is answered."""
        self._last_id += 1
        self._send({"id": self._last_id, "method": method, "params": params})
        for line in self._in:
            self.received.append(line)
            message = json.loads(line)
            if "method" in message:
                if "id" in message:
                    self._send({"id": message["id"], **_answer(message["method"], message.get("params", {}))})
            elif message.get("id") == self._last_id:
                if "error" in message:
                    raise AcpError(f"{method} failed: {message['error']}")
                return message["result"]
        raise AcpError(f"the agent ended during {method}; it sent:\n{''.join(self.received)[-2000:]}")

    def _send(self, message: Mapping[str, Any]) -> None:
        self._out.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._out.flush()


def _answer(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Whatever the agent wants to do it may do; nothing else is offered to it."""
    if method != "session/request_permission":
        return {"error": {"code": _METHOD_NOT_FOUND, "message": f"{method} is not offered"}}
    allowing = [option for option in params["options"] if str(option.get("kind", "")).startswith("allow")]
    return {"result": {"outcome": {"outcome": "selected", "optionId": allowing[0]["optionId"]}}}
