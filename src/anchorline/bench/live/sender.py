"""Sends recorded calls to a running server, each made to fit: its model, a short reply, and the salt of the run."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anchorline.bench.client import CallFailed, Client, Unreachable
from anchorline.bench.live.blocks import words_of
from anchorline.bench.live.call import Measured, call
from anchorline.bench.live.perfect import AnsweredCall
from anchorline.bench.live.protocols import CHAT, WireProtocol, protocol_of, sent_again
from anchorline.bench.live.salt import salted
from anchorline.bench.trace import CHAT_PATH, TraceRequest

SALT_BYTES = 4
MEASURED_WORDS = 256


def new_salt() -> str:
    return secrets.token_hex(SALT_BYTES)


def first_model(client: Client) -> str | None:
    """The name under which the server lists its first model; None when it lists none."""
    try:
        return client.model_name()
    except CallFailed:
        return None


def known_protocol(request: TraceRequest) -> WireProtocol:
    """The protocol of a call that is known to have one."""
    protocol = protocol_of(request.path)
    assert protocol is not None, "calls that speak no protocol are left out first"
    return protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Several threads may use it at the same time."""

    client: Client
    model: str | None
    """The name that is sent; None sends the recorded ones."""
    max_tokens: int
    salt: str | None
    """What makes the prompts of this run its own; None sends them as recorded."""
    api_key: str | None
    wants_reply_ids: bool

    def body(self, request: TraceRequest, *, salt: str | None) -> dict[str, Any]:
        """What is sent for a recorded call."""
        protocol = known_protocol(request)
        body = sent_again(request.body, protocol, model=self.model, max_tokens=self.max_tokens)
        if self.wants_reply_ids and protocol is CHAT:
            body["return_tokens"] = True
        return body if salt is None else salted(body, salt)

    def send(self, request: TraceRequest) -> Measured:
        """Raises CallFailed or Unreachable."""
        return self._send(request, self.body(request, salt=self.salt))

    def warm_up(self, requests: Sequence[TraceRequest], calls: int) -> list[AnsweredCall]:
        """Send the shortest of ``requests``, each under another salt, so that what they leave in a cache helps none.

        Returns those that were answered; the others are refused again when they are measured.
        """
        answered = []
        for request in sorted(requests, key=lambda each: len(str(each.body)))[:calls]:
            body = self.body(request, salt=new_salt())
            try:
                measured = self._send(request, body)
            except (CallFailed, Unreachable):
                continue
            answered.append(
                AnsweredCall(
                    protocol=known_protocol(request),
                    body=body,
                    measured=measured,
                    sent_seconds=-math.inf,
                    ended_seconds=-math.inf,
                )
            )
        return answered

    def _send(self, request: TraceRequest, body: dict[str, Any]) -> Measured:
        return call(self.client, request.path, body, known_protocol(request), api_key=self.api_key)


def words_per_token(sender: Sender) -> float:
    """How many of the words that block traces are written in make a token of the server. Raises CallFailed."""

    def prompt_tokens(words: int) -> int:
        content = " ".join(words_of("measured", count=words))
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        request = TraceRequest(path=CHAT_PATH, body=body, arrival_seconds=0.0, end_seconds=0.0)
        return sender.send(request).counts.prompt_tokens

    return MEASURED_WORDS / max(1, prompt_tokens(2 * MEASURED_WORDS) - prompt_tokens(MEASURED_WORDS))
