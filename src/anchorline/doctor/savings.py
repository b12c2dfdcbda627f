"""What the rewrites of a server would spare in a trace: the same requests, rewritten, and counted again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from anchorline.doctor.cost import CountTokens, prefilled_tokens
from anchorline.doctor.layout import ToolOrder, lay_out
from anchorline.doctor.requests import AgentRequest, Message, Tool, read_tool
from anchorline.prompt.rewrites import Rewriter, Rewrites

REWRITES = {
    "--float-volatile": Rewrites(float_volatile=True),
    "--canonical-tools": Rewrites(canonical_tools=True),
}
"""Those that change what a trace shows; the clock of --pin-date is the template's, which no trace does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What ``anchorline serve`` with a flag would prefill less of a trace; negative where it would be more."""

    flag: str
    tokens: int


def savings(requests: Sequence[AgentRequest], *, count_tokens: CountTokens, order: ToolOrder) -> tuple[Saving, ...]:
    """One for each rewrite that changes what is prefilled."""
    changed = {flag: made for flag, rewrites in REWRITES.items() if (made := rewritten(requests, rewrites)) != requests}
    if not changed:
        return ()
    as_sent = _prefilled(requests, count_tokens, order)
    saved = {flag: as_sent - _prefilled(made, count_tokens, order) for flag, made in changed.items()}
    return tuple(Saving(flag=flag, tokens=tokens) for flag, tokens in saved.items() if tokens)


def rewritten(requests: Sequence[AgentRequest], rewrites: Rewrites) -> tuple[AgentRequest, ...]:
    """The requests as a server that makes these rewrites would render them, each after those before it."""
    rewriter = Rewriter(rewrites, clock=lambda: datetime.min)
    return tuple(
        replace(request, tools=_tools(request, rewriter), messages=_messages(request, rewriter)) for request in requests
    )


def _messages(request: AgentRequest, rewriter: Rewriter) -> tuple[Message, ...]:
    given = [{"role": message.role, "content": message.content} for message in request.messages]
    made = rewriter.messages(given, tenant="", remember=True).messages
    return tuple(replace(message, content=new["content"]) for message, new in zip(request.messages, made, strict=True))


def _tools(request: AgentRequest, rewriter: Rewriter) -> tuple[Tool, ...]:
    made = rewriter.tools([json.loads(tool.text) for tool in request.tools])
    return tuple(read_tool(tool, f"tools[{place}]") for place, tool in enumerate(made))


def _prefilled(requests: Sequence[AgentRequest], count_tokens: CountTokens, order: ToolOrder) -> int:
    layouts = lay_out(requests, order)
    return sum(prefilled_tokens(layouts, place, count_tokens) for place in range(len(layouts)))
