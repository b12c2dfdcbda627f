"""Which workloads run on which models, how often, and in which contexts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anchorline.bench.standing.workloads import SYNTHETIC

HERMES = "hermes"
MIX = "mix"
MIX_AT_ONCE = "mix-at-once"
LONG = "long"
TOOL_SESSION = "tool-session"
FAN_OUT = "fan-out"
RESTART = "restart"
RECORDED = (HERMES, MIX, MIX_AT_ONCE)
WORKLOADS = (*SYNTHETIC, *RECORDED)
QUICK_WORKLOADS = tuple(name for name in SYNTHETIC if name != LONG)
MODELS = ("test:llama", "test:gemma3", "test:qwen35", "smollm2")
"""A model of each kind of memory, and one with real weights."""

CUT_LAYERS = 2
"""What is kept of a model file where all its layers would take hours."""
QUICK_ROUNDS = 1
FULL_ROUNDS = 5
ONCE = 1
"""For workloads whose counts say more than their times."""
QUICKER, SMALLER = "off", "on"
"""Flash attention: without it CPUs read long prompts faster, and need gigabytes for the longest."""
LONG_TOKENS = 120_000
LONG_CONTEXT = 131_072
RECORDED_CONTEXT = 65_536
CONTEXT_UNIT = 1024
ROOM_TOKENS = 4096
"""Of a context, beside its conversations: what they grow by."""
CONVERSATIONS = 2
"""Conversations of the anchor's length that a context holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Workloads that the same servers run one after the other. ``layers`` None keeps all of them."""

    workloads: tuple[str, ...]
    anchor_tokens: int
    context_tokens: int
    layers: int | None
    rounds: int
    flash_attention: str
    """Of all servers."""
    uncached: tuple[str, ...]
    """Those that the server without a cache runs too; it prefills every prompt from its first token."""
    cache_disk: bool = False
    """Whether our server has its disk tier, as it has by default with model files."""


def choose(named: Sequence[str], *, quick: bool, has_traces: bool) -> tuple[tuple[str, ...], dict[str, str]]:
    """The workloads to run, and why others are not run; ``named`` are asked for whether quick or not."""
    skipped: dict[str, str] = {}
    for name in named or WORKLOADS:
        if quick and not named and name not in QUICK_WORKLOADS:
            skipped[name] = "not with --quick"
        elif name in RECORDED and not has_traces:
            skipped[name] = "needs recorded traces (--traces)"
    return tuple(name for name in WORKLOADS if name in (named or WORKLOADS) and name not in skipped), skipped


def groups_of(
    workloads: Sequence[str],
    *,
    from_file: bool,
    quick: bool,
    rounds: int | None,
    anchor_tokens: int,
    layers: int | None,
) -> list[Group]:
    """How ``workloads`` run on one model. A model ``from_file`` is cut where a run would take hours."""
    wanted = rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS)
    cut = layers or (CUT_LAYERS if from_file else None)
    context_tokens = _rounded(CONVERSATIONS * anchor_tokens + ROOM_TOKENS)
    groups = []
    short = tuple(name for name in workloads if name in QUICK_WORKLOADS)
    whole = tuple(name for name in short if name == TOOL_SESSION and from_file and not quick and layers is None)
    restart = tuple(name for name in short if name == RESTART)
    rest = tuple(name for name in short if name not in (*whole, *restart))
    for names, kept in ((whole, None), (rest, cut), (restart, cut)):
        if names:
            groups.append(
                Group(
                    workloads=names,
                    anchor_tokens=anchor_tokens,
                    context_tokens=context_tokens,
                    layers=kept,
                    rounds=wanted,
                    flash_attention=QUICKER,
                    uncached=tuple(name for name in names if name == TOOL_SESSION or not quick),
                    cache_disk=names == restart,
                )
            )
    for name, context in ((LONG, LONG_CONTEXT), *((name, RECORDED_CONTEXT) for name in RECORDED)):
        if name in workloads:
            groups.append(
                Group(
                    workloads=(name,),
                    anchor_tokens=LONG_TOKENS,
                    context_tokens=context,
                    layers=cut,
                    rounds=ONCE,
                    flash_attention=SMALLER if name == LONG else QUICKER,
                    uncached=(),
                )
            )
    return groups


def _rounded(tokens: int) -> int:
    return -(-tokens // CONTEXT_UNIT) * CONTEXT_UNIT
