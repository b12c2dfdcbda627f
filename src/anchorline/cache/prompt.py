"""A prompt as the cache sees it: exact token ids, and hints where a segment may end.

    0          head             message ends            before generation   len(tokens)
    |  system + tools  |  user  |  assistant  |  tool  |  <gen prompt>  |
                       ^cut     ^cut          ^cut     ^cut

A cut is a hint for where to end a segment; correctness rests on the ids alone.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from enum import StrEnum

from anchorline.config import HEAD_DIGEST_DIGITS
from anchorline.llama.interface import TokenArray


class CutKind(StrEnum):
    HEAD = "head"
    """The end of system + tools: the anchor that every conversation of an agent shares."""
    MESSAGE = "message"
    """The end of one message."""
    GENERATION = "generation"
    """Before the generation prompt (``<|im_start|>assistant\\n``)."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A token position, 0 < position ≤ len(tokens), where a segment may end."""

    position: int
    kind: CutKind
    message: int | None = None
    """Index of the last message before the cut; None for the head of a prompt without one."""

    @property
    def label(self) -> str:
        """For logs: ``head``, ``message 3``, ``generation``."""
        return f"message {self.message}" if self.kind is CutKind.MESSAGE else str(self.kind)


class Part(StrEnum):
    """What a prompt is made of, as one who looks for a place in it sees it."""

    HEAD = "head"
    """System prompt and tools."""
    MESSAGE = "message"
    GENERATION = "generation"
    """The generation prompt."""
    TEXT = "text"
    """All of a prompt that has no messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The part of a prompt that a token is in."""

    part: Part
    start: int
    """Token position where the part starts, or the message in it."""
    messages: tuple[int, int] | None = None
    """Indices of the first and the last message that it may be: they differ where ends of messages are not known."""
    role: str | None = None
    """Whose these messages are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinWish:
    """A client's wish that the first ``position`` tokens of its prompt stay until ``ttl_seconds`` after their last use.

    A wish only ever helps: one that cannot be granted is counted, and the call goes on.
    """

    position: int
    ttl_seconds: float


DEFAULT_TENANT = ""
"""Of calls that nothing sets apart from others."""


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose the tokens of one prompt are: the first ``common_tokens`` everybody's, the rest ``tenant``'s."""

    tenant: str = DEFAULT_TENANT
    common_tokens: int = 0

    def at(self, position: int) -> str | None:
        """Who owns the token at ``position``; None for everybody."""
        return None if position < self.common_tokens else self.tenant

    def span_end(self, start: int, end: int) -> int:
        """The last position, at most ``end``, up to which the tokens from ``start`` on have one owner."""
        return min(end, self.common_tokens) if start < self.common_tokens else end

    def usable(self, others: Owners, tokens: int) -> int:
        """How many of the first ``tokens`` of a history of ``others`` may be used for these, where their ids agree."""
        return tokens if self == others else min(tokens, self.common_tokens, others.common_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids of one rendered prompt with its cuts, ascending by position, positions distinct.

    When two kinds fall on one position the first of HEAD, GENERATION, MESSAGE is kept.
    """

    tokens: TokenArray
    cuts: tuple[Cut, ...] = ()
    tool_fingerprint: str | None = None
    """Digest of the tool schemas as sent: names the pin; never a restore key."""
    pin_head: bool = False
    """Whether the head anchor deserves a pin (tools, or a system prompt of ≥ 256 tokens)."""
    message_starts: tuple[int, ...] = field(default=())
    """Token position where each message starts, ascending; the same as the one before where that has no known end."""
    message_roles: tuple[str, ...] = ()
    """Who says each message."""
    unwritten_tokens: int = 0
    """Leading tokens that do not stand in the rendered text: a BOS that was put in front of it."""
    turn_start: int | None = None
    """Token position where the newest user message starts; states behind it are kept together."""
    tenant: str = DEFAULT_TENANT
    """Whose prompt it is: what was computed for one tenant is never restored, or told, to another."""
    common_tokens: int = 0
    """Leading tokens that are common to all tenants: the head, where the operator shares it, or nothing."""
    conversation: str | None = None
    """The name that the client gives its conversation, if it does (``prompt_cache_key``)."""
    pin_wishes: tuple[PinWish, ...] = ()
    """Ascending by position."""
    promised: bool = False
    """Whether it is made to be pinned by hand: what nobody pinned or uses makes room for it, whatever it is worth."""
    guessed: bool = False
    """Whether no client has sent it yet: then nothing is given up for it that another prompt may need."""

    def __len__(self) -> int:
        return int(self.tokens.size)

    @property
    def message_bounds(self) -> tuple[int, ...]:
        """Token positions: where the first message starts, and where each of them ends. Empty without messages."""
        if not self.message_starts:
            return ()
        generation = (cut.position for cut in self.cuts if cut.kind is CutKind.GENERATION)
        return (*self.message_starts, next(generation, len(self)))

    @property
    def owners(self) -> Owners:
        return Owners(self.tenant, self.common_tokens)

    @property
    def head_position(self) -> int | None:
        return next((cut.position for cut in self.cuts if cut.kind is CutKind.HEAD), None)

    @property
    def head_digest(self) -> str | None:
        """A name for the ids up to the head anchor: for pins, the log and ``--share-heads``. None without a head."""
        head = self.head_position
        if head is None:
            return None
        return hashlib.sha256(self.tokens[:head].tobytes()).hexdigest()[:HEAD_DIGEST_DIGITS]

    def beginning(self, length: int) -> Prompt:
        """The first ``length`` tokens as a guess at what comes next: only the head is worth keeping in it."""
        begun = self.up_to(length)
        return replace(begun, cuts=tuple(cut for cut in begun.cuts if cut.kind is CutKind.HEAD), guessed=True)

    def up_to(self, position: int) -> Prompt:
        """The prompt's first ``position`` tokens with their cuts and messages; it wishes for nothing."""
        return replace(
            self,
            tokens=self.tokens[:position],
            cuts=tuple(cut for cut in self.cuts if cut.position <= position),
            message_starts=tuple(start for start in self.message_starts if start < position),
            turn_start=self.turn_start if self.turn_start is not None and self.turn_start < position else None,
            common_tokens=min(self.common_tokens, position),
            conversation=None,
            pin_wishes=(),
        )

    def locate(self, position: int) -> Place:
        """The part of the prompt that token ``position`` is in."""
        bounds = self.message_bounds
        if not bounds:
            return Place(part=Part.TEXT, start=0)
        if position >= bounds[-1]:
            return Place(part=Part.GENERATION, start=bounds[-1])
        last = bisect_right(self.message_starts, position) - 1
        start = self.message_starts[last]
        first = bisect_left(self.message_starts, start)
        roles = set(self.message_roles[first : last + 1])
        head = next((cut for cut in self.cuts if cut.kind is CutKind.HEAD), None)
        # The head reaches into the first message behind it, to where that has words of its own.
        in_head = head is not None and position < head.position and last <= (head.message or 0)
        return Place(
            part=Part.HEAD if in_head else Part.MESSAGE,
            start=start,
            messages=(first, last),
            role=roles.pop() if len(roles) == 1 else None,
        )
