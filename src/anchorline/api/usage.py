"""``usage`` and ``timings``, both made from the engine's CallReport."""

from __future__ import annotations

import msgspec

from anchorline.engine.request import CallReport
from anchorline.prompt.rewrites import NOTHING_REWRITTEN, Rewriting


class PromptTokensDetails(msgspec.Struct, kw_only=True, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, kw_only=True, frozen=True):
    """OpenAI's shape; ``prompt_tokens`` includes the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Rewritten(msgspec.Struct, kw_only=True, frozen=True):
    """What of a request was rendered otherwise than it was sent (docs/rewrites.md)."""

    floated_lines: int
    floated_n: int
    tools_sorted: bool
    pinned_date: str | None
    """ISO 8601, local time."""


class Timings(msgspec.Struct, kw_only=True, frozen=True):
    """llama-server's shape, where the prefix came from, and why not more of it did.

    ``cache_n`` = ``resident_n`` + ``host_n`` tokens were restored, of the latter ``disk_n`` from disk, and ``prompt_n``
    prefilled. ``load_ms``, part of ``queue_ms``, is how long the call was held for the disk, and ``switch_ms``, another
    part, how long it waited for its model to be loaded. ``seen_n`` leading tokens were in earlier prompts or replies;
    ``miss`` says why fewer were restored, null when none could have been.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    restore_ms: float
    queue_ms: float
    load_ms: float
    switch_ms: float | msgspec.UnsetType = msgspec.UNSET
    """Left out where it did not wait for that."""
    plan_ms: float
    render_ms: float
    tokenize_ms: float
    ttft_ms: float | None
    plan: str
    resident_n: int
    host_n: int
    disk_n: int
    seen_n: int
    miss: str | None
    rewritten: Rewritten | msgspec.UnsetType = msgspec.UNSET
    """Left out where nothing was."""


def usage(report: CallReport) -> Usage:
    return Usage(
        prompt_tokens=report.prompt_tokens,
        completion_tokens=report.generated_tokens,
        total_tokens=report.prompt_tokens + report.generated_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=report.restored_tokens),
    )


def timings(
    report: CallReport, *, render_seconds: float, tokenize_seconds: float, rewriting: Rewriting = NOTHING_REWRITTEN
) -> Timings:
    """A rate over no tokens or no time is 0."""
    return Timings(
        cache_n=report.restored_tokens,
        prompt_n=report.prefilled_tokens,
        prompt_ms=milliseconds(report.prefill_seconds),
        prompt_per_token_ms=milliseconds(_ratio(report.prefill_seconds, report.prefilled_tokens)),
        prompt_per_second=_ratio(report.prefilled_tokens, report.prefill_seconds),
        predicted_n=report.generated_tokens,
        predicted_ms=milliseconds(report.decode_seconds),
        predicted_per_token_ms=milliseconds(_ratio(report.decode_seconds, report.generated_tokens)),
        predicted_per_second=_ratio(report.generated_tokens, report.decode_seconds),
        restore_ms=milliseconds(report.restore_seconds),
        queue_ms=milliseconds(report.queue_seconds),
        load_ms=milliseconds(report.load_seconds),
        switch_ms=milliseconds(report.switch_seconds) or msgspec.UNSET,
        plan_ms=milliseconds(report.plan_seconds),
        render_ms=milliseconds(render_seconds),
        tokenize_ms=milliseconds(tokenize_seconds),
        ttft_ms=None if report.ttft_seconds is None else milliseconds(report.ttft_seconds),
        plan=report.plan.value,
        resident_n=report.resident_tokens,
        host_n=report.host_tokens,
        disk_n=report.disk_tokens,
        seen_n=report.seen_tokens,
        miss=None if report.miss is None else report.miss.value,
        rewritten=rewritten(rewriting) or msgspec.UNSET,
    )


def rewritten(rewriting: Rewriting) -> Rewritten | None:
    """None where nothing was."""
    if not rewriting.names:
        return None
    date = rewriting.pinned_date
    return Rewritten(
        floated_lines=rewriting.floated_lines,
        floated_n=rewriting.floated_tokens,
        tools_sorted=rewriting.tools_sorted,
        pinned_date=None if date is None else date.isoformat(timespec="seconds"),
    )


def milliseconds(seconds: float) -> float:
    """Rounded to the microsecond."""
    return round(seconds * 1000, 3)


def _ratio(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
