"""Where pins lie in the tree, which of them a call wishes for, and the anchors that are asked for by hand.

prompt      |-- system + tools --|-- user --|-- assistant --|-- user --|
head                             ^
wishes                                      ^                          ^
anchor      |-- system + tools --|  prefilled ahead, up to the anchor and no further
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anchorline.cache.pins import Pin, PinKind, PinOrder, PinRefusal, Pins, describe, pinned_bytes
from anchorline.cache.prompt import PinWish, Prompt
from anchorline.cache.segment import Segment
from anchorline.cache.tree import Match, SegmentTree
from anchorline.errors import Conflict
from anchorline.llama.interface import TokenArray

LEAST_HEAD_TOKENS = 256
"""A part of a head deserves a pin from this length on; of a short head, from an eighth of it."""
NAMED_PINS = 5
"""An error names so many of the pins that are in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinInfo:
    """A pin as others than the cache's own thread see it."""

    id: str
    kind: PinKind
    name: str | None
    tokens: int
    nbytes: int
    ttl_seconds: float | None
    expires_in_seconds: float | None
    tool_fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorOrder:
    """The first ``position`` tokens of a prompt, a cut of it, are to be kept."""

    prompt: Prompt
    position: int
    name: str | None
    ttl_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """Grants pins over one tree. Owned by the engine thread."""

    tree: SegmentTree
    pins: Pins
    match: Callable[[Prompt, TokenArray], Match]
    clock: Callable[[], float]
    bytes_per_token: float
    state_bytes: int
    """Of one state; 0 for models without."""

    # -- what calls ask for -------------------------------------------------------------------

    def use(self, prompt: Prompt, match: Match) -> None:
        """Refresh the pins that ``prompt`` contains, by its ``match``; however it is restored in the end."""
        kept = [segment for segment in match.chain if segment.end <= match.restorable]
        self.pins.use_all(kept, tenant=prompt.tenant, now=self.clock())

    def after_save(self, prompt: Prompt, saved_tokens: int) -> None:
        """Pin what ``prompt`` deserves and wishes for, as far as its rows are kept.

        So many tokens of it have been saved, or could not be. A prompt that is prefilled in steps is saved after
        each of them: what is missing of a wish is refused after the last.
        """
        now = self.clock()
        self.pins.expire(now)
        head = prompt.head_position
        if prompt.pin_head and head is not None:
            self._pin_head(prompt, head, now)
        for wish in prompt.pin_wishes:
            if wish.position > saved_tokens:
                break
            kind = PinKind.BREAKPOINT
            if prompt.conversation is not None and wish is prompt.pin_wishes[-1]:
                kind = PinKind.CONVERSATION
            granted = self._grant(prompt, wish, kind, now)
            if isinstance(granted, PinRefusal) and saved_tokens >= len(prompt):
                self.pins.refuse(granted, kind, wish.position)

    def _pin_head(self, prompt: Prompt, head: int, now: float) -> None:
        """Pin what is kept of the head; of one that is larger than all pins may be, its beginning.

        Not what is hardly a part of it: all heads of a model may begin with the same few tokens.
        """
        least = min(LEAST_HEAD_TOKENS, math.ceil(head / 8))
        places = [segment for segment in self._places(self._kept(prompt, head)) if segment.end >= least]
        if not places:
            return
        room_bytes = self.pins.room_bytes(PinKind.HEAD)
        segment = next((segment for segment in reversed(places) if pinned_bytes([segment]) <= room_bytes), None)
        made: Pin | PinRefusal = PinRefusal.OVER_BUDGET
        if segment is not None:
            made = self.pins.pin(self._order(prompt, segment, PinKind.HEAD), now)
        if isinstance(made, PinRefusal):
            self.pins.refuse(made, PinKind.HEAD, head)

    def _grant(self, prompt: Prompt, wish: PinWish, kind: PinKind, now: float) -> Pin | PinRefusal:
        segment = self.place(prompt, wish.position)
        if isinstance(segment, PinRefusal):
            return segment
        return self.pins.pin(self._order(prompt, segment, kind, ttl_seconds=wish.ttl_seconds), now)

    # -- anchors ------------------------------------------------------------------------------

    def pin_anchor(self, order: AnchorOrder) -> PinInfo | None:
        """Pin what ``order`` asks for, or refresh its pin; None when it has to be prefilled first.

        Raises Conflict when it does not fit beside the explicit pins that are there, as far as that
        can be known.
        """
        now = self.clock()
        self.pins.expire(now)
        segment = self.place(order.prompt, order.position)
        if isinstance(segment, PinRefusal) or segment.end != order.position:
            self._check_room(order)
            return None
        asked = self._order(order.prompt, segment, PinKind.EXPLICIT, ttl_seconds=order.ttl_seconds, name=order.name)
        made = self.pins.pin(asked, now)
        if isinstance(made, PinRefusal):
            raise self._no_room(made, order, needed_bytes=pinned_bytes([segment]))
        return self.info(made)

    def not_kept(self, order: AnchorOrder) -> Conflict:
        """The error for an anchor that was prefilled and is not there."""
        absence = self.match(order.prompt, order.prompt.tokens).absence
        self.pins.refuse(PinRefusal.NOT_KEPT, PinKind.EXPLICIT, order.position)
        why = "" if absence is None else f" ({absence})"
        message = f"the anchor of {order.position} tokens was prefilled, but could not be kept{why}"
        return Conflict(message, code="anchor_not_kept")

    def _check_room(self, order: AnchorOrder) -> None:
        """Raises Conflict when explicit pins leave too little for ``order``, whose rows are not all kept yet."""
        kept = self._kept(order.prompt, order.position)[-1:]
        missing_tokens = order.position - (kept[0].end if kept else 0)
        missing_bytes = int(missing_tokens * self.bytes_per_token) + self.state_bytes
        firm = [pin.segment for pin in self.pins.firm()]
        needed_bytes = pinned_bytes(kept) + missing_bytes
        if len(firm) >= self.pins.limit:
            raise self._no_room(PinRefusal.TOO_MANY, order, needed_bytes=needed_bytes)
        if pinned_bytes([*firm, *kept]) + missing_bytes > self.pins.room_bytes(PinKind.EXPLICIT):
            raise self._no_room(PinRefusal.OVER_BUDGET, order, needed_bytes=needed_bytes)

    def _no_room(self, reason: PinRefusal, order: AnchorOrder, *, needed_bytes: int) -> Conflict:
        """The error for an anchor that does not fit beside the explicit pins; of those, it names the tenant's own."""
        self.pins.refuse(reason, PinKind.EXPLICIT, order.position)
        firm = self.pins.firm()
        parked_bytes = self.pins.others.firm_bytes(PinKind.EXPLICIT)
        held_bytes = pinned_bytes(pin.segment for pin in firm) + parked_bytes
        limit_bytes = self.pins.limit_bytes
        if reason is PinRefusal.TOO_MANY:
            full, code = f"{len(firm)} are pinned already (--max-pins)", "pin_limit_exceeded"
        else:
            full = f"explicit pins hold {held_bytes} bytes of the {limit_bytes} that they may (--pin-budget)"
            full += f", {parked_bytes} of them for models that are not loaded" if parked_bytes else ""
            code = "pin_budget_exceeded"
        own = sorted((pin for pin in firm if pin.tenant == order.prompt.tenant), key=lambda pin: -pin.nbytes)
        named = "".join(f"; {describe(pin)} holds {pin.nbytes}" for pin in own[:NAMED_PINS])
        return Conflict(
            f"pinning {order.position} tokens takes {needed_bytes} bytes, but {full}{named}",
            code=code,
            details={
                "needed_bytes": needed_bytes,
                "pinned_bytes": held_bytes,
                "pin_budget_bytes": limit_bytes,
                "pinned": [
                    {"id": pin.id, "name": pin.name, "kind": pin.kind, "tokens": pin.tokens, "bytes": pin.nbytes}
                    for pin in own
                ],
            },
        )

    def change(self, pin: Pin, *, name: str | None, ttl_seconds: float | None) -> PinInfo:
        """Make ``pin`` explicit, with this name and TTL; that of a conversation stays where it is from now on."""
        id = content_id(pin.tenant, path_tokens(pin.segment))
        return self.info(self.pins.change(pin, id=id, name=name, ttl_seconds=ttl_seconds, now=self.clock()))

    def info(self, pin: Pin) -> PinInfo:
        """A copy of what there is to tell about ``pin``."""
        return PinInfo(
            id=pin.id,
            kind=pin.kind,
            name=pin.name,
            tokens=pin.tokens,
            nbytes=pin.nbytes,
            ttl_seconds=pin.ttl_seconds,
            expires_in_seconds=None if pin.ttl_seconds is None else max(0.0, pin.expires_seconds - self.clock()),
            tool_fingerprint=pin.tool_fingerprint,
        )

    # -- places -------------------------------------------------------------------------------

    def place(self, prompt: Prompt, position: int) -> Segment | PinRefusal:
        """The deepest kept segment that ends at or before ``position`` and can be resumed at.

        With plain attention that is ``position`` itself, where a segment is split, or nothing.
        """
        kept = self._kept(prompt, position)
        is_whole = bool(kept) and kept[-1].end == position
        if self.tree.splitting and not self.tree.stateful:
            return kept[-1] if is_whole else PinRefusal.NOT_KEPT
        places = self._places(kept)
        if places:
            return places[-1]
        return PinRefusal.NO_STATE if self.tree.stateful and is_whole else PinRefusal.NOT_KEPT

    def _places(self, kept: list[Segment]) -> list[Segment]:
        """Those of ``kept`` at whose ends a prompt can be resumed."""
        return [segment for segment in kept if segment.state is not None or not self.tree.stateful]

    def _kept(self, prompt: Prompt, position: int) -> list[Segment]:
        """The kept segments of the first ``position`` tokens; a splitting tree is split where they end."""
        match = self.match(prompt, prompt.tokens)
        reach = min(match.restorable, position)
        if self.tree.splitting and reach:
            return self.tree.descend(prompt.tokens, reach, prompt.owners, from_node=self.tree.root)
        return [segment for segment in match.chain if segment.end <= reach]

    def _order(
        self,
        prompt: Prompt,
        segment: Segment,
        kind: PinKind,
        *,
        ttl_seconds: float | None = None,
        name: str | None = None,
    ) -> PinOrder:
        end = segment.end
        if kind is PinKind.HEAD:  # one pin, however much of the head it holds
            assert prompt.head_position is not None
            end = prompt.head_position
        id = content_id(prompt.tenant, prompt.tokens[:end])
        if kind is PinKind.CONVERSATION:
            assert prompt.conversation is not None
            id = conversation_id(prompt.tenant, prompt.conversation)
        return PinOrder(
            id=id,
            kind=kind,
            tenant=prompt.tenant,
            segment=segment,
            ttl_seconds=ttl_seconds,
            name=prompt.conversation if kind is PinKind.CONVERSATION else name,
            tool_fingerprint=prompt.tool_fingerprint,
        )


def path_tokens(segment: Segment) -> TokenArray:
    """The ids of all that a pin of ``segment`` keeps."""
    parts: list[TokenArray] = []
    node: Segment | None = segment
    while node is not None:
        parts.append(node.tokens)
        node = node.parent
    return np.concatenate(parts[::-1])


def content_id(tenant: str, tokens: TokenArray) -> str:
    """The id of a pin of just these tokens: the same content is the same pin."""
    return _id(tenant, b"tokens", tokens.tobytes())


def conversation_id(tenant: str, conversation: str) -> str:
    """The id of the pin that moves on with a conversation."""
    return _id(tenant, b"conversation", conversation.encode("utf-8", "surrogatepass"))


def _id(tenant: str, *parts: bytes) -> str:
    return "anchor_" + hashlib.sha256(b"\0".join((tenant.encode(), *parts))).hexdigest()[:24]
