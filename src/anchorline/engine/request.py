"""What goes down into the engine and what comes back up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from anchorline.cache.classes import CallClass
from anchorline.cache.difference import Difference
from anchorline.cache.prompt import Prompt
from anchorline.errors import AnchorlineError
from anchorline.llama.interface import SamplingParams, TokenArray, TokenConstraint, TokenLogprob


class FinishReason(StrEnum):
    STOP = "stop"
    """An end-of-generation token, or the consumer found a stop string."""
    LENGTH = "length"
    """``max_tokens`` or the end of the context was reached."""


class TokenForcer(Protocol):
    """Chooses tokens of one call's reply in the sampler's place.

    Called on the engine thread before each token: must be quick, must not block or raise.
    """

    def force(self, choice: int, generated: TokenArray) -> int | None:
        """The id that has to follow ``generated``, the reply of ``choice`` so far; None leaves it to the sampler.

        ``generated`` is a view that holds for this call alone. An end-of-generation id ends the choice.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One call: a prompt, and how to continue it."""

    id: str
    prompt: Prompt
    sampling: SamplingParams
    max_tokens: int
    """Most tokens per choice; clamped to what the context leaves. 0 only prefills: the call ends once its
    prompt is decoded, and the prompt is kept to its last token."""
    choices: int = 1
    """Continuations of the one prefill (``n``), ≤ --parallel."""
    logprobs: int | None = None
    """How many alternatives to report per token; None reports no log-probabilities at all."""
    forcer: TokenForcer | None = None
    """Has a say in every token; None leaves them all to the sampler."""
    constraint: TokenConstraint | None = None
    """What every choice has to keep to; None leaves all tokens open."""
    use_cache: bool = True
    """False neither restores nor saves (``cache_prompt: false``)."""
    background: bool = False
    """Only done while nothing else is to be done, and given up (Cancelled) for any other call; needs ``max_tokens``
    0. What it prefilled until then is kept."""
    received_seconds: float = 0.0
    """``time.monotonic()`` when the HTTP request arrived; the zero of TTFT."""
    switch_seconds: float = 0.0
    """How long it has waited since then for its model to be loaded."""
    on_admitted: Callable[[CallReport], None] | None = None
    """Told once, before the prefill, where the prompt comes from. Called on the engine thread: must be
    quick, must not block or raise."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One generated token. End-of-generation tokens are not delivered."""

    token: int
    logprob: float | None = None
    alternatives: tuple[TokenLogprob, ...] = ()


class PlanKind(StrEnum):
    """Where the prefix came from."""

    CONTINUE = "continue"
    """A resident idle sequence was trimmed and goes on."""
    FORK = "fork"
    """Cells of a resident sequence are shared with a new one."""
    RESTORE = "restore"
    """A chain of segments was put back from the host tier."""
    COLD = "cold"
    """Everything is prefilled."""


class MissReason(StrEnum):
    """Why fewer tokens were restored than an earlier prompt or reply would have allowed."""

    EVICTED = "evicted"
    """The segments were given up for others."""
    UNSAVED = "unsaved"
    """They were never saved: no room that could be freed, or an export that failed."""
    CHEAPER = "cheaper"
    """Prefilling was expected to be quicker than restoring."""
    FAILED = "failed"
    """A restore was refused by llama.cpp, or a file could not be read; the rest was recomputed."""
    NO_ROOM = "no_room"
    """The live pool had too few free cells for an import; the segments are kept."""
    NO_STATE = "no_state"
    """The rows are there, but no state was kept at a later cut, and the model resumes only at one."""
    OFF = "off"
    """The request asked for no cache (``cache_prompt: false``); with it more would have been restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """What one call did; the source of ``usage``, ``timings``, the log line and the metrics.

    ``resident_tokens + host_tokens + prefilled_tokens == prompt_tokens`` holds for every call that
    finished; of one that was cancelled or failed, less may have been prefilled.
    """

    id: str
    call_class: CallClass = CallClass.COLD
    """What the cache took it for."""
    plan: PlanKind
    prompt_tokens: int
    resident_tokens: int
    host_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    seen_tokens: int
    """Length of the longest prefix of this prompt that an earlier prompt or reply contained."""
    miss: MissReason | None
    difference: Difference | None = None
    """Where the prompt leaves an earlier prompt or reply that goes on otherwise; None where it only adds to them."""
    sequence: int | None = None
    """The live sequence that the resident tokens came from."""
    segments: tuple[tuple[int, int], ...] = ()
    """The spans [start, end) that were put back from the host tier."""
    missing_cut: str | None = None
    """With NO_STATE: the cut whose state would have saved most (``head``, ``message 3``, ``generation``)."""
    queue_seconds: float
    plan_seconds: float
    restore_seconds: float
    prefill_seconds: float
    decode_seconds: float
    ttft_seconds: float | None
    """From receipt to the first token; None when none was made."""
    sharing_seconds: float = 0.0
    """Part of ``queue_seconds``: waited for another call that was prefilling the same prefix."""
    disk_tokens: int = 0
    """Part of ``host_tokens``: read from disk for this call."""
    load_seconds: float = 0.0
    """Part of ``queue_seconds``: waited for the disk tier."""
    switch_seconds: float = 0.0
    """Part of ``queue_seconds``: waited for its model to be loaded."""
    expected_seconds: float = 0.0
    """What the planner expected restoring and prefilling to take …"""
    rejected_plans: tuple[tuple[PlanKind, str], ...] = ()
    """… and the other ways that there were, each with what it would have brought and taken."""

    @property
    def restored_tokens(self) -> int:
        return self.resident_tokens + self.host_tokens

    @property
    def tiers(self) -> dict[str, int]:
        """Restored tokens by where they lay when the call came."""
        host_tokens = self.host_tokens - self.disk_tokens
        return {"resident": self.resident_tokens, "host": host_tokens, "disk": self.disk_tokens}


class ReplyConsumer(Protocol):
    """Takes one call's reply. Called on the engine thread: must be quick, must not block or raise.

    Order: any number of ``on_token``, then ``on_finish`` once per choice, then ``on_done`` once;
    or ``on_error`` once, at any time, as the last call.
    """

    def on_token(self, choice: int, token: SampledToken) -> bool:
        """Take a token. True ends this choice with FinishReason.STOP (a stop string was found)."""
        ...

    def on_finish(self, choice: int, reason: FinishReason) -> None: ...

    def on_done(self, report: CallReport) -> None: ...

    def on_error(self, error: AnchorlineError, report: CallReport | None) -> None:
        """The call was cancelled or failed; ``report`` is what it did until then, None if it never began."""
        ...
