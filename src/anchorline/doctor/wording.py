"""Findings in a person's words, each with what can be done about it."""

from __future__ import annotations

from collections.abc import Sequence

from anchorline.doctor.comparison import Kind, Place
from anchorline.doctor.findings import Finding, Occurrence
from anchorline.doctor.savings import Saving

SHOWN_REQUESTS = 8
"""As many request numbers as a sentence lists."""

TITLES = {
    Kind.CLOCK: "a clock in the prompt",
    Kind.COUNTER: "a counter in the prompt",
    Kind.CHANGING_ID: "an id that changes",
    Kind.SYSTEM_CHANGED: "a system prompt that changes",
    Kind.BILLING_HEADER: "a billing header",
    Kind.TOOLS_REORDERED: "tools in another order",
    Kind.TOOLS_CHANGED: "tools that come and go",
    Kind.REMINDER_MOVED: "a reminder that moves",
    Kind.HISTORY_REWRITTEN: "history rewritten",
    Kind.HISTORY_PRUNED: "history pruned",
    Kind.ARGUMENTS_RESERIALISED: "arguments written otherwise",
    Kind.REASONING_DROPPED: "reasoning dropped",
    Kind.TOOLS_BEHIND_HISTORY: "tools behind the history",
    Kind.SIDE_CALL: "side calls with their own head",
}

REMEDIES = {
    Kind.CLOCK: "Have the client leave the time out, or say it in the newest message, which is prefilled anyway; "
    "a date without a time costs this once a day. In the system prompt, a line of its own can be moved by the "
    "server: --float-volatile.",
    Kind.COUNTER: "Have the client say the number in the newest message, or as late in the system prompt as it can. "
    "In the system prompt, a line of its own that says what it counts can be moved by the server: --float-volatile.",
    Kind.CHANGING_ID: "Ids of requests and sessions tell a model nothing: have the client send them as a header "
    "or in metadata, or keep one for the whole session. In the system prompt, a line of its own can be "
    "moved by the server: --float-volatile.",
    Kind.SYSTEM_CHANGED: "What changes (memory, tasks, lists of files) belongs to the end of the system prompt or "
    "into a message of its own; let a client that rewrites its memory do so between sessions. With a template "
    "that has the tools first, such as a built-in one (--chat-template), they stay restored.",
    Kind.BILLING_HEADER: "Over /v1/messages Anchorline drops it when it leads the system prompt, so it costs nothing "
    "here; for other servers have it stripped on the way, and where a proxy turns it into a chat message, so too, or "
    "serve with --float-volatile.",
    Kind.TOOLS_REORDERED: "Have the client sort its tools and their keys, or collect them once per session; MCP "
    "servers that are asked at the same time answer in any order. Or serve with --canonical-tools.",
    Kind.TOOLS_CHANGED: "Register all tools from the first request on and restrict them with tool_choice; connect "
    "MCP servers before the session begins, and switch off those that come and go.",
    Kind.REMINDER_MOVED: "A reminder costs least when it stays where it was first said. Have the client leave it "
    "in the history, or switch it off; a moved one takes the reply behind it along.",
    Kind.HISTORY_REWRITTEN: "After a compaction this is paid once: let it happen later, with a larger --ctx and the "
    "client's own idea of the context (Hermes: model.context_length, it compacts at 75 %). Otherwise have the "
    "client append only.",
    Kind.HISTORY_PRUNED: "Clearing old tool results saves tokens once and prefills all behind them: have the client do "
    "it rarely and for many at once, or not at all with a larger --ctx and context length in the client.",
    Kind.ARGUMENTS_RESERIALISED: "Turns with tool calls that Anchorline generated keep the ids they were generated "
    "with (--max-turns, --max-turn-bytes); for others, have the client send the arguments back as they came.",
    Kind.REASONING_DROPPED: "Turns with tool calls that Anchorline generated get it back (--max-turns, "
    "--max-turn-bytes); for others, have the client return reasoning_content, thinking blocks or reasoning items.",
    Kind.TOOLS_BEHIND_HISTORY: "Serve with the built-in template of the model's turn marks (--chat-template): its "
    "tools come first; or with one of your own that writes them in front of the history.",
    Kind.SIDE_CALL: "Anchorline keeps the conversation through them. Titles and summaries can go to a small model "
    "(OpenCode: small_model; Claude Code: ANTHROPIC_SMALL_FAST_MODEL; aider: --weak-model), or be asked at "
    "the tip of the conversation, with its own system prompt and tools.",
}

_SENTENCES = {
    Kind.CLOCK: "{where} holds a clock: {before} became {after}",
    Kind.COUNTER: "{where} holds a counter: {before} became {after}",
    Kind.CHANGING_ID: "{where} holds an id that changes: {before} became {after}",
    Kind.SYSTEM_CHANGED: "{where} changed: {before} became {after}",
    Kind.BILLING_HEADER: "{where} holds a billing header: {before} became {after}",
    Kind.TOOLS_REORDERED: "{where} came in another order: {before} became {after}",
    Kind.TOOLS_CHANGED: "{where} changed: {before} became {after}",
    Kind.REMINDER_MOVED: "{before} was in {where}, and is {after}",
    Kind.HISTORY_REWRITTEN: "{where} was rewritten: {before} became {after}",
    Kind.HISTORY_PRUNED: "{where} was cut: {before} became {after}",
    Kind.ARGUMENTS_RESERIALISED: "{where} came back written otherwise: {before} became {after}",
    Kind.REASONING_DROPPED: "{where} was left out: {before}",
    Kind.TOOLS_BEHIND_HISTORY: "the template writes the tools behind the history, where each question moves them; "
    "they stood in front of {where}, {after}",
    Kind.SIDE_CALL: "a call that shares no head with the conversation begins with {after}",
}

_DROPPED_HEADER = "the system prompt begins with a billing header, which is dropped: {after}"


def sentence(finding: Finding) -> str:
    """Where and what: the requests, the first place, both sides of the difference."""
    first = finding.occurrences[0]
    pattern = _SENTENCES[finding.kind]
    if finding.kind is Kind.BILLING_HEADER and first.earlier is None:
        pattern = _DROPPED_HEADER
    after = first.after if finding.kind is Kind.REMINDER_MOVED else _quoted(first.after)
    text = pattern.format(where=_where(first.place), before=_quoted(first.before), after=after)
    return f"{_requests(finding.occurrences)}: {text}."


def cost(finding: Finding) -> str:
    """The tokens that a finding cost, each time and in all."""
    lost = [occurrence.lost_tokens for occurrence in finding.occurrences]
    if not finding.lost_tokens:
        dropped = finding.kind is Kind.BILLING_HEADER
        return "It cost nothing." if dropped else "What it cost is counted with the next break of the same request."
    prefilled = "prefilled for it" if finding.kind is Kind.SIDE_CALL else "prefilled again"
    if len(lost) == 1:
        return f"{lost[0]:,} tokens were {prefilled}."
    each = f"{lost[0]:,}" if min(lost) == max(lost) else f"{min(lost):,} to {max(lost):,}"
    return f"{each} tokens were {prefilled} each time, {finding.lost_tokens:,} in all."


def saved(saving: Saving) -> str:
    """What a server with the flag would prefill less."""
    if saving.tokens < 0:
        return f"With {saving.flag} a server would prefill {-saving.tokens:,} tokens more."
    return f"With {saving.flag} a server would prefill {saving.tokens:,} tokens less (docs/rewrites.md)."


def _requests(occurrences: Sequence[Occurrence]) -> str:
    numbers = [str(occurrence.request) for occurrence in occurrences]
    if len(numbers) == 1:
        return f"Request {numbers[0]}"
    if len(numbers) > SHOWN_REQUESTS:
        return f"Requests {', '.join(numbers[:SHOWN_REQUESTS])} and {len(numbers) - SHOWN_REQUESTS} more"
    return f"Requests {', '.join(numbers[:-1])} and {numbers[-1]}"


def _where(place: Place) -> str:
    if place.role == "tools":
        return "the tools" if place.field == "tools" else f"the tool {place.field} (byte {place.byte})"
    line = f", line {place.line}" if place.line is not None else ""
    byte = f", byte {place.byte}" if place.byte else ""
    if place.role == "system":
        return f"the system prompt (message {place.part}{line}{byte})"
    of = "" if place.field == "content" else f"the {place.field} of "
    return f"{of}message {place.part} ({place.role}{line}{byte})"


def _quoted(text: str) -> str:
    return f"“{text}”" if text else "nothing"
