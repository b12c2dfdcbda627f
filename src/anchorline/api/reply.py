"""What the replies of both completion endpoints share: head, collected choices, the writer's face."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from anchorline.api.options import CallOptions
from anchorline.llama.interface import Tokenizer
from anchorline.output.reply import ChoiceFinished, ReplyEvent, ReplyFinished, TextDelta, TokenText


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What every chunk and reply of one call repeats, and what their last part needs."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    fingerprint: str
    options: CallOptions
    tokenizer: Tokenizer
    render_seconds: float
    tokenize_seconds: float


@dataclass(slots=True)
class CollectedChoice:
    """One choice of a reply that is sent whole."""

    text_parts: list[str] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.text_parts)

    @property
    def token_ids(self) -> list[int]:
        return [token.token for token in self.tokens]


def collect(events: list[ReplyEvent], *, choices: int) -> tuple[CollectedChoice, ...]:
    """Put the events of a finished reply together, choice by choice."""
    collected = tuple(CollectedChoice() for _ in range(choices))
    for event in events:
        if isinstance(event, TextDelta):
            collected[event.choice].text_parts.append(event.text)
            collected[event.choice].tokens.extend(event.tokens)
        elif isinstance(event, ChoiceFinished):
            collected[event.choice].finish_reason = event.reason.value
    return collected


class ReplyWriter(Protocol):
    """One protocol's way of writing one reply."""

    def chunks(self, event: TextDelta | ChoiceFinished | ReplyFinished) -> list[msgspec.Struct]:
        """The chunks that ``event`` adds to a streamed reply, in order."""
        ...

    def whole(self, events: list[ReplyEvent], finished: ReplyFinished) -> msgspec.Struct:
        """The reply in one piece."""
        ...


def token_ids(tokens: tuple[TokenText, ...], *, wanted: bool) -> list[int] | msgspec.UnsetType:
    """Ids for ``return_tokens``; left out when not asked for."""
    return [token.token for token in tokens] if wanted else msgspec.UNSET
