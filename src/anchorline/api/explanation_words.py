"""Explanations in a person's words, each reason with what would have avoided it (docs/explain.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anchorline.api.explanation import Explanation, FirstDifference
from anchorline.cache.prompt import Part
from anchorline.engine.request import MissReason

REMEDY_TOKENS = 64
"""What fewer lost tokens cost is not worth a change in a client."""

ALWAYS, CHANGED, NEW, NO_CACHE = "always", "changed", "new", "no_cache"
"""Reasons beside those of a miss."""

_MISSES = {
    MissReason.EVICTED: "their rows were given up for others",
    MissReason.UNSAVED: "their rows were not saved",
    MissReason.CHEAPER: "that was expected to be quicker than restoring them",
    MissReason.FAILED: "llama.cpp refused to restore them",
    MissReason.NO_ROOM: "the live cache had too few free cells to restore them",
    MissReason.NO_STATE: "the model resumes only where a state was kept, and none was at {cut}",
    MissReason.OFF: "the request asked for no cache",
}

_MISS_REMEDIES = {
    MissReason.EVICTED: "A larger --cache-ram keeps more; what is pinned stays (POST /cache/anchors or cache_control, "
    "within --pin-budget).",
    MissReason.UNSAVED: "A larger --cache-ram has room for them, and anchors make room (POST /cache/anchors); if an "
    "export failed, the log says so.",
    MissReason.FAILED: "The log says what was refused. The rows are saved anew, so the next call has them.",
    MissReason.NO_ROOM: "A larger --ctx has more cells; a smaller --parallel or --resident-idle needs fewer.",
    MissReason.NO_STATE: "A smaller --checkpoint-every keeps more states; one is also kept where a pin is wished for "
    "(cache_control or POST /cache/anchors).",
    MissReason.OFF: "Leave cache_prompt out, or send true.",
}

_TOOL_FINDINGS = ("tools-reordered", "tools-changed")
_HEAD_FINDINGS = ("clock", "counter", "changing-id", "system-changed", "billing-header")
_ROLE_FINDINGS = {
    "system": ("reminder-moved", "history-rewritten"),
    "user": ("reminder-moved", "history-rewritten", "history-pruned", "tools-behind-history"),
    "assistant": ("arguments-reserialised", "reasoning-dropped", "history-rewritten"),
    "tool": ("history-pruned", "history-rewritten"),
}
"""Kinds of ``anchorline doctor`` that look so."""

_HEAD_REMEDY = (
    "Have the client keep system prompt and tools as they are, and say what changes in the newest message "
    "(`anchorline doctor` names the line or tool), or let the server do it: --float-volatile, --canonical-tools, "
    "--pin-date."
)
_ROLE_REMEDIES = {
    "assistant": "Have the client send its turns back as they came; those that were generated here keep their ids "
    "within --max-turns and --max-turn-bytes.",
    "tool": "Have the client clear old tool results rarely and many at once, or not at all with a larger --ctx.",
}
_HISTORY_REMEDY = (
    "Have the client only append to the history, and let what changes stand in the newest message; "
    "`anchorline doctor` says what it was."
)
_TEXT_REMEDY = "Let what changes stand as late in the prompt as it can."
_NO_CACHE_REMEDY = "Serve without --no-cache; /health says why when it is off by itself."
_FIRST_REMEDY = "A head can be prefilled before its first call (--warm FILE or POST /cache/anchors)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why some of the tokens of a prompt are prefilled."""

    code: str
    """A MissReason, or one of ALWAYS, CHANGED, NEW, NO_CACHE."""
    tokens: int
    text: str
    remedy: str | None = None
    """What would have avoided it; None where nothing would."""
    findings: tuple[str, ...] = ()
    """What ``anchorline doctor`` may call it."""


def reasons(explanation: Explanation) -> tuple[Reason, ...]:
    """Why tokens are prefilled; what the reasons count adds up to all of them."""
    if not explanation.cache:
        tokens = explanation.prefilled_tokens
        text = f"{_count(tokens)} prefilled, as the server keeps nothing."
        return (Reason(code=NO_CACHE, tokens=tokens, text=text, remedy=_NO_CACHE_REMEDY),)
    found = (_recomputed(explanation), _lost(explanation), _new(explanation))
    return tuple(reason for reason in found if reason.tokens)


def _recomputed(explanation: Explanation) -> Reason:
    tokens, miss = explanation.recomputed_tokens, explanation.miss
    again = f"{_count(tokens)} prefilled again though seen before"
    if miss is None:
        text = f"{again}: the last one always is, and what stands behind the last place that can be resumed at."
        return Reason(code=ALWAYS, tokens=tokens, text=text)
    why = _MISSES[miss].format(cut=explanation.missing_cut)
    return Reason(code=miss.value, tokens=tokens, text=f"{again}: {why}.", remedy=_MISS_REMEDIES.get(miss))


def _lost(explanation: Explanation) -> Reason:
    tokens, difference = explanation.lost_tokens, explanation.first_difference
    at = "the first token" if difference is None else place_text(difference)
    text = (
        f"{_count(tokens)} prefilled again because they stand behind a difference: the prompt leaves an earlier one, "
        f"which holds them too, at {at}."
    )
    if tokens < REMEDY_TOKENS:
        return Reason(code=CHANGED, tokens=tokens, text=text)
    return Reason(
        code=CHANGED,
        tokens=tokens,
        text=text,
        remedy=_change_remedy(difference),
        findings=_findings(difference, has_tools=explanation.has_tools),
    )


def _change_remedy(difference: FirstDifference | None) -> str:
    if difference is None or difference.place.part is Part.HEAD:
        return _HEAD_REMEDY
    if difference.place.part is Part.TEXT:
        return _TEXT_REMEDY
    return _ROLE_REMEDIES.get(difference.place.role or "", _HISTORY_REMEDY)


def _findings(difference: FirstDifference | None, *, has_tools: bool) -> tuple[str, ...]:
    if difference is None or difference.place.part is Part.HEAD:
        return (*_HEAD_FINDINGS, *_TOOL_FINDINGS) if has_tools else _HEAD_FINDINGS
    return _ROLE_FINDINGS.get(difference.place.role or "", ())


def _new(explanation: Explanation) -> Reason:
    tokens, difference = explanation.new_tokens, explanation.first_difference
    text = f"{_count(tokens)} new: nothing that the prompt begins with was seen before."
    if difference is not None:
        text = f"{_count(tokens)} new, from {place_text(difference)} on."
    first = explanation.has_head and (difference is None or difference.place.part is Part.HEAD)
    could_be_ready = first and explanation.lost_tokens < REMEDY_TOKENS
    return Reason(code=NEW, tokens=tokens, text=text, remedy=_FIRST_REMEDY if could_be_ready else None)


def restored_text(explanation: Explanation) -> str:
    """Where the restored tokens come from."""
    sources: list[str] = []
    if explanation.resident_tokens:
        sources.append(f"{explanation.resident_tokens:,} from live sequence {explanation.sequence}")
    if ram_tokens := explanation.host_tokens - explanation.disk_tokens:
        sources.append(f"{ram_tokens:,} from host RAM")
    if explanation.disk_tokens:
        sources.append(f"{explanation.disk_tokens:,} from disk")
    if not sources:
        return f"None of {explanation.prompt_tokens:,} tokens is restored."
    if segments := len(explanation.segments):
        sources[-1] += f" ({segments} segment{'' if segments == 1 else 's'})"
    counted = f"{explanation.restored_tokens:,} of {explanation.prompt_tokens:,} tokens"
    return f"{counted} are restored: {' and '.join(sources)}."


def summary(explanation: Explanation) -> str:
    """All of it, a sentence for each part."""
    return " ".join([restored_text(explanation), *(reason.text for reason in reasons(explanation))])


def remedies(found: Sequence[Reason]) -> str | None:
    """What would have avoided each of some reasons; None where nothing would."""
    return " ".join(reason.remedy for reason in found if reason.remedy is not None) or None


def place_text(difference: FirstDifference) -> str:
    """``message 3 (tool), byte 120``; says so where it is in the head or in no message."""
    place = difference.place
    if place.messages is None:
        named = "the generation prompt" if place.part is Part.GENERATION else "the prompt"
    else:
        first, last = place.messages
        named = f"message {first}" if first == last else f"messages {first} to {last}"
        role = "head" if place.part is Part.HEAD else place.role
        named += f" ({role})" if role is not None else ""
    return f"{named}, byte {difference.byte}"


def _count(tokens: int) -> str:
    return f"{tokens:,} {'is' if tokens == 1 else 'are'}"
