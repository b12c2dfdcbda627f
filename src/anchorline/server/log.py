"""The one log line of each request, as key=value pairs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.types import Scope

from anchorline.api.errors import ApiError
from anchorline.api.explanation import Explanation
from anchorline.api.explanation_words import place_text
from anchorline.api.usage import milliseconds
from anchorline.engine.request import CallReport
from anchorline.prompt.rewrites import NOTHING_REWRITTEN, Rewriting

logger = logging.getLogger("anchorline.request")


def call_line(
    report: CallReport,
    explanation: Explanation,
    *,
    head_digest: str | None = None,
    rewriting: Rewriting = NOTHING_REWRITTEN,
) -> str:
    """What one finished call did, and where its prompt left all that was seen before; with a miss also why."""
    difference = explanation.first_difference
    pairs: dict[str, object] = {
        "id": report.id,
        **_tokens(report),
        "queue_ms": milliseconds(report.queue_seconds),
        "restore_ms": milliseconds(report.restore_seconds),
        "prefill_ms": milliseconds(report.prefill_seconds),
        "ttft_ms": "none" if report.ttft_seconds is None else milliseconds(report.ttft_seconds),
        "seen": report.seen_tokens,
    }
    if difference is None:
        pairs["differs"] = "none"
    else:
        pairs[difference.verb] = place_text(difference)
    if explanation.lost_tokens:
        pairs["lost"] = explanation.lost_tokens
    if head_digest is not None:
        pairs["head"] = head_digest
    if report.switch_seconds:
        pairs["switch_ms"] = milliseconds(report.switch_seconds)
    if report.sharing_seconds:
        pairs["sharing_ms"] = milliseconds(report.sharing_seconds)
    if report.load_seconds:
        pairs["load_ms"] = milliseconds(report.load_seconds)
    if report.miss is not None:
        pairs["miss"] = report.miss.value
    if report.missing_cut is not None:
        pairs["missing_cut"] = report.missing_cut
    if rewriting.names:
        pairs["rewritten"] = ",".join(rewriting.names)
    if rewriting.floated_lines:
        pairs["floated"] = rewriting.floated_tokens
    return _line(pairs)


def log_error(error: ApiError, scope: Scope) -> None:
    """Note a request that was refused or failed."""
    line = error_line(error, method=scope["method"], path=scope["path"], request_id=scope.get("anchorline.id"))
    logger.info(line)


def error_line(error: ApiError, *, method: str, path: str, request_id: str | None) -> str:
    """A request that was refused or failed."""
    return _line(
        {
            "id": request_id or "none",
            "method": method,
            "path": path,
            "status": error.status,
            "code": error.code or "none",
            "field": error.param or "none",
            "error": error.message,
        }
    )


def ended_line(request_id: str, *, status: str, report: CallReport | None) -> str:
    """A call that did not finish, and what it did until then; ``report`` is None when that is not known."""
    pairs: dict[str, object] = {"id": request_id, "status": status}
    if report is not None:
        pairs |= _tokens(report)
    return _line(pairs)


def _tokens(report: CallReport) -> dict[str, object]:
    return {
        "plan": report.plan.value,
        "prompt": report.prompt_tokens,
        "restored": report.restored_tokens,
        "prefilled": report.prefilled_tokens,
        "generated": report.generated_tokens,
        "tier": _tier(report),
        "class": report.call_class.label,
    }


def _tier(report: CallReport) -> str:
    return "+".join(tier for tier, tokens in report.tiers.items() if tokens) or "none"


def _line(pairs: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_value(value)}" for key, value in pairs.items())


def _value(value: object) -> str:
    """Quoted when it holds anything that would break the pairs; a client cannot add lines to the log."""
    text = str(value)
    if text and text.isprintable() and not set(text) & set(' ="\\'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else ascii(char)[1:-1] for char in escaped) + '"'
