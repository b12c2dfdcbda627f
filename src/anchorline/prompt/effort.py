"""Reasoning effort, in the words that a template knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""What clients may ask for, least first."""

EFFORT_OPTIONS = ("reasoning_effort", "thinking_effort")
"""Names under which templates read it."""

_USUAL = frozenset({"low", "medium", "high"})
"""What a template is taken to know when it shows any value it is given."""


def known_efforts(literals: Sequence[str], renders: Callable[[str], bool]) -> tuple[str, ...]:
    """The efforts that a template knows, least first.

    ``literals`` are the template's strings. Some templates refuse all but their own values, which
    ``renders`` tells; others show whatever they are given, although their models know only a few.
    """
    return tuple(effort for effort in EFFORTS if (effort in _USUAL or effort in literals) and renders(effort))


def reads_effort(source: str) -> bool:
    """Whether a template asks for the effort at all."""
    return any(name in source for name in EFFORT_OPTIONS)


def named(effort: str) -> dict[str, str]:
    """Template options that give ``effort`` as it is."""
    return dict.fromkeys(EFFORT_OPTIONS, effort)


def effort_kwargs(effort: str, known: Sequence[str]) -> dict[str, Any]:
    """Template options for ``effort``: the nearest that the template knows, and for others just on or off."""
    on = effort != "none"
    kwargs: dict[str, Any] = {"enable_thinking": on, "thinking": on}
    fitting = [candidate for candidate in known if (candidate != "none") == on] or known
    if fitting:
        wanted = EFFORTS.index(effort)
        kwargs |= named(min(fitting, key=lambda candidate: abs(EFFORTS.index(candidate) - wanted)))
    return kwargs
