"""Turns that were generated here, found again when a client sends them back.

Clients do not give a turn back as it was: keys are sorted, spaces go, reasoning is dropped. Rendered anew it
has other token ids than those that were generated, and everything behind it would have to be prefilled. A turn
that means the same as one of ours may take its ids (``prompt.splice``).

A turn with tool calls is found by the id of its first call, within its tenant, and taken only if all of it
means the same: an id alone proves nothing. A turn of text alone is found by its text, and by what it answered
where the same was said with other reasoning elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anchorline.engine.request import FinishReason
from anchorline.llama.interface import TokenArray, Tokenizer
from anchorline.output.events import (
    ChoiceFinished,
    ReasoningDelta,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    TextDelta,
    ToolCallDelta,
)
from anchorline.output.meaning import Said, SaidBuilder
from anchorline.prompt.memo import ByteMemo
from anchorline.prompt.messages import Message

PLACES_PER_TURN = 64
"""At how many places in conversations a turn is found without a search."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn was found in a rendered text, or that it was not; holds for texts that begin alike."""

    span: tuple[int, int] | None
    """[start, end) where the turn's ids may stand; None where they may not."""
    checked: int
    """Length of the beginning that says so, in characters."""
    digest: bytes
    """sha256 of that beginning."""


@dataclass(slots=True, kw_only=True, eq=False)
class GeneratedTurn:
    """One choice of a reply that the model ended itself. Never changed but for ``places``."""

    tokens: TokenArray
    """Generated ids without the one that ended the turn; read-only."""
    text: str
    """Their text, control tokens spelled out."""
    said: Said
    places: Mapping[int, Place] = field(default_factory=dict)
    """Index of a message → where it was last found as that one, to be checked before it is believed.

    One turn stands for all that are alike, so a conversation may hold it several times. Replaced, never changed.
    """

    @property
    def held_bytes(self) -> int:
        said = self.said
        texts = (self.text, said.reasoning, said.content, *(call.arguments for call in said.calls))
        return int(self.tokens.nbytes) + sum(map(len, texts)) * 2 + 500 * (1 + len(said.calls))

    def note(self, index: int, place: Place) -> None:
        """Keep where the turn was looked for as message ``index``, in the stead of what was noted longest ago."""
        kept = [item for item in self.places.items() if item[0] != index]
        self.places = dict([*kept[1 - PLACES_PER_TURN :], (index, place)])

    def matches(self, message: Mapping[str, object]) -> bool:
        """Whether a normalised assistant message means the same; reasoning may have been dropped."""
        reasoning = message.get("reasoning_content", "")
        if reasoning and str(reasoning).strip() != self.said.reasoning.strip():
            return False
        return self.said.content.strip() == str(message["content"]).strip() and self._same_calls(message)

    def heal(self, message: Message) -> Message:
        """``message`` with what its client dropped or wrote in another way."""
        healed = {**message, "content": self.said.content}
        if self.said.reasoning.strip():
            healed["reasoning_content"] = self.said.reasoning
        if self.said.calls:
            healed["tool_calls"] = [
                {**call, "function": {"name": own.name, "arguments": own.arguments}}
                for call, own in zip(message["tool_calls"], self.said.calls, strict=True)
            ]
        return healed

    def _same_calls(self, message: Mapping[str, object]) -> bool:
        calls = message.get("tool_calls", [])
        assert isinstance(calls, list)
        return len(calls) == len(self.said.calls) and all(
            call.get("id") == own.id and own.means(call["function"]["name"], call["function"]["arguments"])
            for call, own in zip(calls, self.said.calls, strict=True)
        )


class TurnMemo:
    """The turns generated lately, bounded in entries and bytes. Thread-safe."""

    def __init__(self, *, limit_entries: int, limit_bytes: int) -> None:
        self._turns: ByteMemo[tuple[str, bytes], GeneratedTurn] = ByteMemo(limit_bytes, limit_entries=limit_entries)

    def remember(self, tenant: str, turn: GeneratedTurn, *, asked: bytes = b"") -> None:
        """Keep a turn, which answers what ``asked`` stands for, for the clients of ``tenant``.

        One that says nothing is not worth it. Of equal ones the first is kept, which knows its places.
        """
        if not turn.tokens.size:
            return
        calls, content = turn.said.calls, turn.said.content
        for key in (_key(calls[0].id, ""),) if calls else _text_keys(content, asked):
            known = self._turns.get((tenant, key))
            if known is None or known.said != turn.said or not np.array_equal(known.tokens, turn.tokens):
                self._turns.put((tenant, key), turn, turn.held_bytes)

    def find(self, tenant: str, message: Message, *, asked: bytes) -> GeneratedTurn | None:
        """The turn of which a normalised message that answers ``asked`` is a copy, if it is one.

        The same text may have been said with other thoughts elsewhere: a turn with reasoning is known again only
        where it answers what it did.
        """
        if message["role"] != "assistant":
            return None
        calls = message.get("tool_calls", [])
        if calls and "id" not in calls[0]:
            return None
        if calls:
            turn = self._turns.get((tenant, _key(calls[0]["id"], "")))
        else:
            own, anywhere = _text_keys(message["content"], asked)
            turn = self._turns.get((tenant, own))
            if turn is None:
                turn = self._turns.get((tenant, anywhere))
                turn = None if turn is not None and turn.said.reasoning.strip() else turn
        return turn if turn is not None and turn.matches(message) else None

    def __len__(self) -> int:
        return len(self._turns)


def asked_before(messages: Sequence[Message]) -> list[bytes]:
    """What a reply behind 0, 1, … of the normalised messages answers: all their texts, without white space around."""
    digest = hashlib.sha256()
    asked = [digest.digest()]
    for message in messages:
        digest.update(f"{message['role']}\0{message['content'].strip()}\0".encode("utf-8", "surrogatepass"))
        asked.append(digest.digest())
    return asked


def _text_keys(content: str, asked: bytes) -> tuple[bytes, bytes]:
    """Where a turn of text alone is kept: for what it answered, and for anywhere."""
    anywhere = _key(None, content)
    return hashlib.sha256(anywhere + asked).digest(), anywhere


def _key(call_id: str | None, content: str) -> bytes:
    kind, value = ("text", content.strip()) if call_id is None else ("call", call_id)
    return hashlib.sha256(f"{kind}\n{value}".encode("utf-8", "surrogatepass")).digest()


@dataclass(slots=True)
class _Turn:
    said: SaidBuilder = field(default_factory=SaidBuilder)
    tokens: list[int] = field(default_factory=list)


class TurnRecorder:
    """Remembers the turns of one call from its structured events."""

    def __init__(self, memo: TurnMemo, tokenizer: Tokenizer, *, tenant: str, asked: bytes = b"") -> None:
        self._memo = memo
        self._tokenizer = tokenizer
        self._tenant = tenant
        self._asked = asked
        self._turns: dict[int, _Turn] = {}
        self.turn: GeneratedTurn | None = None
        """The last one that was remembered."""

    def take(self, event: ReplyEvent) -> None:
        """Each event once, in order. A turn that did not end by itself is not remembered."""
        if isinstance(event, ReplyFinished | ReplyFailed):
            return
        turn = self._turns.setdefault(event.choice, _Turn())
        turn.said.take(event)
        if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta):
            turn.tokens += [token.token for token in event.tokens]
        if isinstance(event, ChoiceFinished) and event.reason is FinishReason.STOP and event.stop_string is None:
            self.turn = self._turn(turn)
            self._memo.remember(self._tenant, self.turn, asked=self._asked)

    def _turn(self, turn: _Turn) -> GeneratedTurn:
        tokens = np.array(turn.tokens, dtype=np.int32)
        tokens.flags.writeable = False
        text = b"".join(map(self._tokenizer.special_piece, turn.tokens)).decode("utf-8", "replace")
        return GeneratedTurn(tokens=tokens, text=text, said=turn.said.said())
