"""What a call is to the cache: known from its prompt and what was seen before, without any client's help. Pure.

    conversation   goes on from a history that was seen: | head | seen messages | new ones |
    side           a title, tags, a short summary: no tools, short, one question, answered at once
    cold           seen for the first time

A fork at the tip of a conversation (a review) reads as one that goes on; it stays a leaf that nobody comes
back to. A large call without tools (a compaction) and the first call of a sub-agent are cold.
"""

from __future__ import annotations

from enum import IntEnum

from anchorline.cache.prompt import CutKind, Prompt

SIDE_PROMPT_TOKENS_MAX = 1536
SIDE_MESSAGES_MAX = 2
"""Behind the system text; a conversation that goes on has at least three."""
SIDE_REPLY_TOKENS_MAX = 512
"""A call with a longer reply was the first turn of a chat."""


class CallClass(IntEnum):
    """Ascending by what may be given up for a call's segments."""

    SIDE = 0
    """Borrows room that is left over: nothing of another class goes for it, and its segments go first."""
    COLD = 1
    """On probation until somebody comes back to it."""
    CONVERSATION = 2

    @property
    def label(self) -> str:
        """For logs and metrics."""
        return self.name.lower()


def classify(prompt: Prompt, seen_tokens: int) -> CallClass:
    """The class of a call on admission; an earlier prompt or reply held its first ``seen_tokens``.

    Text without messages is a conversation once half of it was seen.
    """
    turn_ends = [cut.position for cut in prompt.cuts if cut.kind is not CutKind.HEAD]
    if prompt.conversation is None and _is_one_question(prompt, turns=len(turn_ends)):
        return CallClass.SIDE
    first_turn = turn_ends[0] if turn_ends else (len(prompt) + 1) // 2
    return CallClass.CONVERSATION if seen_tokens >= first_turn else CallClass.COLD


def at_end(call_class: CallClass, reply_tokens: int) -> CallClass:
    """The class of a call once its reply is known."""
    if call_class is CallClass.SIDE and reply_tokens > SIDE_REPLY_TOKENS_MAX:
        return CallClass.COLD
    return call_class


def _is_one_question(prompt: Prompt, *, turns: int) -> bool:
    short = len(prompt) <= SIDE_PROMPT_TOKENS_MAX
    return short and prompt.tool_fingerprint is None and 1 <= turns <= SIDE_MESSAGES_MAX
