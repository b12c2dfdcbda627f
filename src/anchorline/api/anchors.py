"""``/cache`` and ``/cache/anchors``: what is asked of the cache, and how it is shown (docs/pins.md)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from anchorline.api.chat import ChatBody, ChatPrompt, can_continue, chat_prompt
from anchorline.api.decode import decode_body
from anchorline.api.ranges import Range, check_range
from anchorline.cache.disk import DiskStats
from anchorline.cache.pinning import PinInfo
from anchorline.cache.prompt import CutKind, Prompt
from anchorline.engine.commands import Cleared, Lifetime, PinListing
from anchorline.engine.request import CallReport
from anchorline.engine.stats import EngineStats
from anchorline.errors import RequestError
from anchorline.limits import Limits

_SPAN = re.compile(r"(\d{1,9})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_NEXT = {"role": "user", "content": "?"}
"""Stands behind what is to be kept, where a reply cannot: where it begins, the anchor ends."""
_SYSTEM_ROLES = ("system", "developer")

_SHOWN = (
    "resident_sequences",
    "resident_tokens",
    "context_tokens",
    "pending_saves",
    "pins",
    "pinned_bytes",
    "parked_pinned_bytes",
    "pin_budget_bytes",
)
"""Gauges of EngineStats that ``GET /cache`` shows under their own names."""


class AnchorBody(ChatBody, kw_only=True):
    """A chat's body; of its fields those count that a prompt is rendered from."""

    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    name: str | None = None
    ttl: Any = None


class ChangeBody(msgspec.Struct, kw_only=True):
    name: str | None = None
    ttl: Any = msgspec.UNSET


class ClearBody(msgspec.Struct, kw_only=True):
    pins: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorCall:
    """A checked request for an anchor."""

    prompt: ChatPrompt
    """What to render: the messages to keep, and what makes the place visible where they end."""
    messages: int
    """How many of them are to be kept; 0 keeps the head alone."""
    name: str | None
    ttl_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorChange:
    """A checked change of a pin; None leaves what it is about."""

    name: str | None
    lifetime: Lifetime | None


def parse_anchor(raw: bytes, *, limits: Limits) -> AnchorCall:
    """Check a ``POST /cache/anchors`` body. Raises RequestError naming the field."""
    body = decode_body(raw, AnchorBody)
    if not body.messages and not body.tools:
        raise RequestError("messages or tools must hold at least one entry", field="messages")
    kept = len(body.messages)
    shown = chat_prompt(body if body.messages else msgspec.structs.replace(body, messages=[_NEXT]), limits=limits)
    if kept and not _awaits_reply(body.messages):
        shown = replace(shown, messages=[*shown.messages, _NEXT])
    return AnchorCall(
        prompt=replace(shown, add_generation_prompt=True, continue_final=False),
        messages=kept,
        name=_check_name(body.name, limits),
        ttl_seconds=_check_ttl(body.ttl, limits),
    )


def _awaits_reply(messages: list[dict[str, Any]]) -> bool:
    """Whether a template would let a reply follow, and not only another message."""
    return messages[-1].get("role") not in _SYSTEM_ROLES and not can_continue(messages)


def anchor_position(prompt: Prompt, messages: int) -> int:
    """Where the first ``messages`` messages end: the last cut of theirs. Raises RequestError when there is none."""
    ends = [
        cut.position
        for cut in prompt.cuts
        if (cut.kind is CutKind.HEAD if cut.message is None else cut.message < messages)
    ]
    if not ends:
        raise RequestError("this chat template gives no place at which to keep the prompt", code="no_anchor")
    return ends[-1]


def parse_change(raw: bytes, *, limits: Limits) -> AnchorChange:
    """Check a ``PATCH /cache/anchors/{id}`` body. Raises RequestError naming the field."""
    body = decode_body(raw, ChangeBody)
    lifetime = None if body.ttl is msgspec.UNSET else Lifetime(seconds=_check_ttl(body.ttl, limits))
    return AnchorChange(name=_check_name(body.name, limits), lifetime=lifetime)


def parse_clear(raw: bytes) -> bool:
    """Whether ``POST /cache/clear`` takes the pins, too; an empty body doesn't."""
    return bool(raw.strip()) and decode_body(raw, ClearBody).pins is True


def _check_name(name: str | None, limits: Limits) -> str | None:
    if name is not None and not 1 <= len(name) <= limits.pin_name:
        raise RequestError(
            f"name must have between 1 and {limits.pin_name} characters (--max-pin-name), not {len(name)}", field="name"
        )
    return name


def _check_ttl(ttl: object, limits: Limits) -> float | None:
    """Seconds of ``"5m"``, ``"1h"`` or a number; None: until it is removed."""
    allowed = Range(low=1, high=limits.pin_ttl_seconds, flag="--max-pin-ttl")
    if isinstance(ttl, str):
        span = _SPAN.fullmatch(ttl)
        if span is None:
            raise RequestError(f'ttl must be {allowed}, or a text like "5m" or "1h"', field="ttl")
        ttl = int(span[1]) * _UNIT_SECONDS[span[2]]
    seconds = check_range("ttl", ttl, allowed=allowed)
    return None if seconds is None else float(seconds)


def anchor_object(pin: PinInfo) -> dict[str, Any]:
    """One pin."""
    return {
        "object": "cache.anchor",
        "id": pin.id,
        "name": pin.name,
        "kind": pin.kind,
        "tokens": pin.tokens,
        "bytes": pin.nbytes,
        "pinned": True,
        "ttl_seconds": pin.ttl_seconds,
        "expires_in_seconds": pin.expires_in_seconds,
        "tool_fingerprint": pin.tool_fingerprint,
    }


def made_anchor(pin: PinInfo, report: CallReport | None) -> dict[str, Any]:
    """A pin that was asked for, and what its prefill did; None when everything was there."""
    restored, prefilled = (pin.tokens, 0) if report is None else (report.restored_tokens, report.prefilled_tokens)
    return anchor_object(pin) | {"restored_tokens": restored, "prefilled_tokens": prefilled}


def anchor_list(listing: PinListing) -> dict[str, Any]:
    """A tenant's pins."""
    return {
        "object": "list",
        "data": [anchor_object(pin) for pin in listing.pins],
        "pinned_bytes": listing.pinned_bytes,
        "parked_pinned_bytes": listing.parked_bytes,
        "pin_budget_bytes": listing.budget_bytes,
    }


def deleted_anchor(id: str) -> dict[str, Any]:
    return {"id": id, "object": "cache.anchor.deleted", "deleted": True}


def cleared(result: Cleared, *, undeleted_files: int | None) -> dict[str, Any]:
    """``undeleted_files`` is None while not all were tried."""
    return {"freed_bytes": result.freed_bytes, "kept_bytes": result.kept_bytes, "undeleted_files": undeleted_files}


def cache_object(stats: EngineStats) -> dict[str, Any]:
    """The cache in figures; counters only grow."""
    counters = {declared.name: _count(getattr(stats.cache, declared.name)) for declared in fields(stats.cache)}
    counters |= {"pins_ended": _count(stats.pins_ended), "pins_refused": _count(stats.pins_refused)}
    return {
        "object": "cache",
        "enabled": stats.host_budget_bytes > 0,
        "fault": stats.cache_fault,
        "budget_bytes": stats.host_budget_bytes,
        "limit_bytes": stats.host_limit_bytes,
        "used_bytes": stats.host_used_bytes,
        "segments": stats.host_segments,
        "states": stats.host_states,
        "state_bytes": stats.host_state_bytes,
        **{name: getattr(stats, name) for name in _SHOWN},
        "counters": counters,
        "disk": _disk_object(stats.disk) if stats.disk.enabled else None,
    }


def _disk_object(stats: DiskStats) -> dict[str, Any]:
    """The disk tier in figures."""
    shown = {
        name: getattr(stats, name) for name in ("used_bytes", "limit_bytes", "records", "indexed", "pending_writes")
    }
    counters = {declared.name: _count(getattr(stats.store, declared.name)) for declared in fields(stats.store)}
    counters |= {"loads": stats.loads, "refused_loads": stats.refused_loads, "given_up_loads": stats.given_up_loads}
    counters |= {"unattached": _count(stats.unattached)}
    return shown | {"counters": counters}


def _count(counted: int | Counter[str]) -> int | dict[str, int]:
    """A number, or numbers by reason."""
    return counted if isinstance(counted, int) else {str(reason): count for reason, count in counted.items()}
