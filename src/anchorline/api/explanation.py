"""Why a prompt was prefilled: one record per call, made of what the engine reports. Pure.

prompt   |======= restored =======|~~ recomputed ~~|...|~~ lost ~~|...|
                                                   ^ first difference; what is neither is new
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anchorline.cache.difference import SHOWN_TOKENS
from anchorline.cache.prompt import Place, Prompt
from anchorline.engine.request import CallReport, MissReason, PlanKind
from anchorline.llama.interface import TokenArray, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where a prompt leaves everything that was seen before."""

    place: Place
    token: int
    """Tokens of the prompt that stand in front of it."""
    byte: int
    """Bytes of the rendered text that stand in front of it, from the start of its part or message."""
    changed: bool
    """Whether an earlier prompt or reply goes on there, with something else; otherwise the prompt only adds to them."""

    @property
    def verb(self) -> str:
        """What the prompt does at the place, for headers and the log."""
        return "differs" if self.changed else "adds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Of the tokens of one prompt: which came back, from where, and why the others did not.

    Restored, recomputed, lost and new ones add up to the prompt.
    """

    cache: bool
    """Whether the server keeps anything at all."""
    plan: PlanKind
    expected_seconds: float
    """What the planner expected restoring and prefilling to take."""
    rejected_plans: tuple[tuple[PlanKind, str], ...]
    prompt_tokens: int
    resident_tokens: int
    sequence: int | None
    """The live sequence they came from."""
    host_tokens: int
    disk_tokens: int
    """Part of ``host_tokens``: read from disk for it."""
    segments: tuple[tuple[int, int], ...]
    """The spans [start, end) that came from the host tier."""
    recomputed_tokens: int
    """Seen before, and prefilled again …"""
    miss: MissReason | None
    """… for this reason; without one it could not be helped."""
    missing_cut: str | None
    lost_tokens: int
    """Prefilled again because they stand behind the first difference: the earlier prompt holds them, too."""
    first_difference: FirstDifference | None
    """None where nothing was seen, or all of it."""
    has_tools: bool
    has_head: bool
    """Whether there is a head that is worth a pin."""

    @property
    def restored_tokens(self) -> int:
        return self.resident_tokens + self.host_tokens

    @property
    def prefilled_tokens(self) -> int:
        return self.prompt_tokens - self.restored_tokens

    @property
    def new_tokens(self) -> int:
        return self.prefilled_tokens - self.recomputed_tokens - self.lost_tokens


def explain(report: CallReport, prompt: Prompt, spelling: Spelling, *, cache: bool) -> Explanation:
    """The explanation of a call that was planned, whether or not it has ended. Nothing is rendered or tokenised."""
    difference = report.difference
    known = report.seen_tokens if difference is None else difference.position
    return Explanation(
        cache=cache,
        plan=report.plan,
        expected_seconds=report.expected_seconds,
        rejected_plans=report.rejected_plans,
        prompt_tokens=report.prompt_tokens,
        resident_tokens=report.resident_tokens,
        sequence=report.sequence,
        host_tokens=report.host_tokens,
        disk_tokens=report.disk_tokens,
        segments=report.segments,
        recomputed_tokens=min(known, report.prompt_tokens) - report.restored_tokens,
        miss=report.miss,
        missing_cut=report.missing_cut,
        lost_tokens=0 if difference is None else difference.lost_tokens,
        first_difference=_first_difference(report, prompt, spelling, known) if 0 < known < len(prompt) else None,
        has_tools=prompt.tool_fingerprint is not None,
        has_head=prompt.pin_head,
    )


def _first_difference(report: CallReport, prompt: Prompt, spelling: Spelling, token: int) -> FirstDifference:
    place, difference = prompt.locate(token), report.difference
    byte = spelling.size_bytes(prompt.tokens[max(place.start, prompt.unwritten_tokens) : token])
    if difference is not None:
        own = prompt.tokens[token : token + SHOWN_TOKENS].tolist()
        byte += spelling.common_bytes(own, difference.instead)
    return FirstDifference(place=place, token=token, byte=byte, changed=difference is not None)


class Spelling:
    """With how many bytes ids are spelled, control tokens too. Each id is read once; any thread may ask."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._sizes = np.full(tokenizer.vocab_size, -1, dtype=np.int32)

    def size_bytes(self, tokens: TokenArray) -> int:
        sizes = self._sizes[tokens]
        unread = tokens[sizes < 0]
        if unread.size:
            for token in np.unique(unread).tolist():
                self._sizes[token] = len(self._tokenizer.special_piece(token))
            sizes = self._sizes[tokens]
        return int(sizes.sum())

    def common_bytes(self, left: Sequence[int], right: Sequence[int]) -> int:
        """Length of the common beginning of two texts, given as their ids."""
        one, other = (b"".join(map(self._tokenizer.special_piece, ids)) for ids in (left, right))
        common = 0
        while common < min(len(one), len(other)) and one[common] == other[common]:
            common += 1
        return common
