"""How explanations are sent: ``x-anchorline-*`` headers, ``POST /cache/explain`` and ``GET /cache/requests``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anchorline.api.explanation import Explanation, FirstDifference
from anchorline.api.explanation_words import place_text, reasons, remedies, summary
from anchorline.api.usage import milliseconds, rewritten
from anchorline.engine.request import CallReport
from anchorline.errors import RequestError
from anchorline.prompt.rewrites import NOTHING_REWRITTEN, Rewriting

ASKED_HEADER = "x-anchorline-explain"
"""Of a request: whether its reply has the headers."""
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}

WAITING = "waiting"
"""For a plan, in the headers of a stream that had to begin before the call was planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCall:
    """One call that has ended, for ``GET /cache/requests``. Holds nothing of what was said."""

    tenant: str
    endpoint: str
    created: int
    """Unix seconds at which it ended."""
    status: str
    """``finished``, ``cancelled`` or ``failed``."""
    head_digest: str | None
    report: CallReport
    explanation: Explanation
    rewriting: Rewriting


def wants_headers(given: str | None, *, default: bool) -> bool:
    """Whether a reply is to have the headers; ``given`` is the request's ASKED_HEADER. Raises RequestError."""
    if given is None:
        return default
    switch = _SWITCHES.get(given.strip().lower())
    if switch is None:
        raise RequestError(f"{ASKED_HEADER} must be true or false, not {given[:20]!r}", field=ASKED_HEADER)
    return switch


def explanation_headers(call_id: str, explanation: Explanation | None) -> dict[str, str]:
    """ASCII alone; None for a call that is not planned yet."""
    if explanation is None:
        return _named({"request": call_id, "plan": WAITING})
    difference, remedy = explanation.first_difference, remedies(reasons(explanation))
    told = {
        "request": call_id,
        "plan": explanation.plan.value,
        "prompt-tokens": explanation.prompt_tokens,
        "resident-tokens": explanation.resident_tokens,
        "host-tokens": explanation.host_tokens,
        "recomputed-tokens": explanation.recomputed_tokens,
        "lost-tokens": explanation.lost_tokens,
        "new-tokens": explanation.new_tokens,
        "miss": explanation.miss,
        "missing-cut": explanation.missing_cut,
        "remedy": remedy,
    }
    if difference is not None:
        told[difference.verb] = place_text(difference)
    return _named({name: value for name, value in told.items() if value is not None})


def _named(told: dict[str, object]) -> dict[str, str]:
    return {f"x-anchorline-{name}": str(value) for name, value in told.items()}


def explanation_object(explanation: Explanation) -> dict[str, Any]:
    """Members of a plan and of a request."""
    return {
        "plan": explanation.plan,
        "prompt_tokens": explanation.prompt_tokens,
        "restored_tokens": explanation.restored_tokens,
        "resident_tokens": explanation.resident_tokens,
        "sequence": explanation.sequence,
        "host_tokens": explanation.host_tokens,
        "disk_tokens": explanation.disk_tokens,
        "segments": explanation.segments,
        "prefilled_tokens": explanation.prefilled_tokens,
        "recomputed_tokens": explanation.recomputed_tokens,
        "lost_tokens": explanation.lost_tokens,
        "new_tokens": explanation.new_tokens,
        "miss": explanation.miss,
        "missing_cut": explanation.missing_cut,
        "first_difference": _difference_object(explanation.first_difference),
        "expected_ms": milliseconds(explanation.expected_seconds),
        "rejected_plans": [{"plan": plan, "why": why} for plan, why in explanation.rejected_plans],
        "reasons": [
            {
                "reason": reason.code,
                "tokens": reason.tokens,
                "text": reason.text,
                "remedy": reason.remedy,
                "findings": reason.findings,
            }
            for reason in reasons(explanation)
        ],
        "text": summary(explanation),
    }


def _difference_object(difference: FirstDifference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    first, last = difference.place.messages or (None, None)
    return {
        "part": difference.place.part,
        "message": first,
        "last_message": last,
        "role": difference.place.role,
        "byte": difference.byte,
        "token": difference.token,
        "changed": difference.changed,
        "text": place_text(difference),
    }


def plan_object(
    explanation: Explanation, *, pending_saves: int, rewriting: Rewriting = NOTHING_REWRITTEN
) -> dict[str, Any]:
    """What ``POST /cache/explain`` answers."""
    return {
        "object": "cache.plan",
        **explanation_object(explanation),
        "rewritten": rewritten(rewriting),
        "pending_saves": pending_saves,
    }


def request_object(call: ExplainedCall) -> dict[str, Any]:
    """One entry of ``GET /cache/requests``."""
    report = call.report
    return {
        "object": "cache.request",
        "id": report.id,
        "endpoint": call.endpoint,
        "created": call.created,
        "status": call.status,
        "class": report.call_class.label,
        "head": call.head_digest,
        **explanation_object(call.explanation),
        "rewritten": rewritten(call.rewriting),
        "generated_tokens": report.generated_tokens,
        "queue_ms": milliseconds(report.queue_seconds),
        "switch_ms": milliseconds(report.switch_seconds),
        "sharing_ms": milliseconds(report.sharing_seconds),
        "plan_ms": milliseconds(report.plan_seconds),
        "restore_ms": milliseconds(report.restore_seconds),
        "prefill_ms": milliseconds(report.prefill_seconds),
        "decode_ms": milliseconds(report.decode_seconds),
        "ttft_ms": None if report.ttft_seconds is None else milliseconds(report.ttft_seconds),
    }


def request_list(calls: Sequence[ExplainedCall]) -> dict[str, Any]:
    """What ``GET /cache/requests`` answers."""
    return {"object": "list", "data": [request_object(call) for call in calls]}
