"""What a perfect prefix cache would have prefilled of a replay, worked out once it has ended.

Token ids are asked for only then: so a server neither works for the oracle while it is timed, nor finds prompts that
it has rendered already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import msgspec

from anchorline.bench.client import CallFailed, Client, Unreachable
from anchorline.bench.live.call import Measured
from anchorline.bench.live.protocols import CHAT, WireProtocol
from anchorline.bench.live.shown import shown
from anchorline.bench.oracle import CutOracle, Oracle, Tokens, as_tokens
from anchorline.bench.reported import Count

PROBE = {"messages": [{"role": "user", "content": "hello"}]}


class OracleKind(StrEnum):
    """What the oracle compared prompts by."""

    TOKEN_IDS = "token ids"
    """As the server makes them: exact."""
    BYTES = "bytes"
    """Of what templates show: an estimate, in the tokens that the server reports for each prompt."""


class TokenIds(Protocol):
    """Asks a server for the token ids of its chat prompts."""

    tells_replies: ClassVar[bool]
    """Whether a chat call that sets ``return_tokens`` brings the ids of its reply."""
    tells_cuts: ClassVar[bool]

    def prompt(self, body: Mapping[str, Any]) -> tuple[Tokens, tuple[int, ...]]:
        """The ids of the prompt of a chat body, and its cuts where they are told. Raises CallFailed or Unreachable."""
        ...


@dataclass(frozen=True, slots=True)
class AnchorlineIds:
    client: Client
    tells_replies: ClassVar[bool] = True
    tells_cuts: ClassVar[bool] = True

    def prompt(self, body: Mapping[str, Any]) -> tuple[Tokens, tuple[int, ...]]:
        tokens, cuts = self.client.prompt(dict(body))
        return tokens, tuple(cuts)


class Rendered(msgspec.Struct, frozen=True):
    """llama-server's answer to ``/apply-template``."""

    prompt: str


class Tokenised(msgspec.Struct, frozen=True):
    """llama-server's answer to ``/tokenize``."""

    tokens: list[Count]


@dataclass(frozen=True, slots=True)
class LlamaServerIds:
    client: Client
    tells_replies: ClassVar[bool] = False
    tells_cuts: ClassVar[bool] = False

    def prompt(self, body: Mapping[str, Any]) -> tuple[Tokens, tuple[int, ...]]:
        rendered = self.client.ask(Rendered, "POST", "/apply-template", dict(body))
        asked = {"content": rendered.prompt, "add_special": True, "parse_special": True}
        return as_tokens(self.client.ask(Tokenised, "POST", "/tokenize", asked).tokens), ()


def token_ids_of(client: Client) -> AnchorlineIds | LlamaServerIds | None:
    """None for a server that tells no ids. Raises Unreachable."""
    try:
        answer = client.post("/apply-template", {**PROBE, "return_tokens": True})
    except CallFailed:
        return None
    told = answer if isinstance(answer, Mapping) else {}
    if "cuts" in told:
        return AnchorlineIds(client)
    return LlamaServerIds(client) if "prompt" in told else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCall:
    """One call that a server answered. Times are seconds since the start of the replay, below 0 before it."""

    protocol: WireProtocol
    body: Mapping[str, Any]
    measured: Measured
    sent_seconds: float
    ended_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPrompt:
    """A prompt as the oracle compares it: its symbols are token ids, or bytes that stand for them."""

    symbols: Tokens
    cuts: tuple[int, ...]
    reply: Tokens
    """The symbols of its reply; empty where they are not known."""
    prompt_tokens: int
    """As the server counted them."""
    sent_seconds: float
    ended_seconds: float


def perfect_costs(
    calls: Sequence[AnsweredCall], ids: TokenIds | None, *, at_cuts: bool
) -> tuple[OracleKind, list[int]]:
    """What the oracle compared by, and its cost of each of ``calls``.

    By token ids where the server tells those of every call, and they are as many as it counted; else by bytes.
    """
    prompts = _by_ids(calls, ids, at_cuts=at_cuts) if ids is not None else None
    if prompts is not None:
        return OracleKind.TOKEN_IDS, costs_of(prompts, at_cuts=at_cuts)
    return OracleKind.BYTES, costs_of(list(map(_by_bytes, calls)), at_cuts=at_cuts)


def costs_of(prompts: Sequence[SentPrompt], *, at_cuts: bool) -> list[int]:
    """The tokens of each prompt that no prompt sent before it, nor reply that had ended, contained; at least 1.

    Where symbols are no tokens it is the share of new symbols, in tokens. Calls that overlap are taken to share even
    what is only just being computed, so the sum is a lower bound.
    """
    oracle = CutOracle() if at_cuts else Oracle()
    costs = [0] * len(prompts)
    sent = [(prompt.sent_seconds, 0, place) for place, prompt in enumerate(prompts)]
    ended = [(prompt.ended_seconds, 1, place) for place, prompt in enumerate(prompts)]
    for _, is_end, place in sorted(sent + ended):
        prompt = prompts[place]
        if is_end:
            oracle.reply(prompt.symbols, prompt.reply)
        else:
            share = oracle.cost(prompt.symbols, prompt.cuts) / max(1, prompt.symbols.size)
            costs[place] = max(1, round(share * prompt.prompt_tokens))
    return costs


def _by_ids(calls: Sequence[AnsweredCall], ids: TokenIds, *, at_cuts: bool) -> list[SentPrompt] | None:
    if any(call.protocol is not CHAT for call in calls) or (at_cuts and not ids.tells_cuts):
        return None
    prompts = []
    for call in calls:
        try:
            tokens, cuts = ids.prompt(call.body)
        except (CallFailed, Unreachable):
            return None
        if tokens.size != call.measured.counts.prompt_tokens:
            return None
        prompts.append(_sent(call, tokens, cuts, reply=as_tokens(call.measured.reply)))
    return prompts


def _by_bytes(call: AnsweredCall) -> SentPrompt:
    symbols, cuts = shown(call.body)
    return _sent(call, symbols, cuts, reply=as_tokens(()))


def _sent(call: AnsweredCall, symbols: Tokens, cuts: tuple[int, ...], *, reply: Tokens) -> SentPrompt:
    return SentPrompt(
        symbols=symbols,
        cuts=cuts,
        reply=reply,
        prompt_tokens=call.measured.counts.prompt_tokens,
        sent_seconds=call.sent_seconds,
        ended_seconds=call.ended_seconds,
    )
